"""Engines, traffic and limits for the capacity benchmark, with their knees."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lengths:
    """Tokens: uniform between two ends, or lognormal and cut off at them."""

    low: int
    high: int
    median: float = 0.0
    sigma: float | None = None


@dataclass(frozen=True)
class Scene:
    """One engine under one kind of traffic.

    Attributes:
        name: How it is printed.
        knee_per_s: Where the percentile of long runs crosses its limit, recorded from `--knees`.
        slos: Limits.
        burstiness: Shape of the gamma arrivals; 1 is Poisson.
    """

    name: str
    slos: tuple[str, ...]
    knee_per_s: float
    prompt_tokens: Lengths
    output_tokens: Lengths
    max_num_seqs: int
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    pool_tokens: int = 400_000
    burstiness: float = 1.0


DESIGN = (
    Scene("16 slots, P99 E2E 2 s", ("p99_e2e_ms=2000",), 27.48, Lengths(64, 255), Lengths(32, 95), 16),
    Scene(
        "256 slots, P99 E2E 6 s",
        ("p99_e2e_ms=6000",),
        29.77,
        Lengths(16, 1000, 200, 0.6),
        Lengths(8, 500, 120, 0.5),
        256,
    ),
    Scene("64 slots, P95 TTFT 0.5 s", ("p95_ttft_ms=500",), 22.84, Lengths(100, 900), Lengths(16, 200), 64),
    Scene("32 slots, P95 E2E 1.2 s", ("p95_e2e_ms=1200",), 40.55, Lengths(64, 255), Lengths(32, 95), 32),
)
JUDGING = (
    Scene(
        "24 slots, long-tailed, P99 E2E 4 s",
        ("p99_e2e_ms=4000",),
        35.56,
        Lengths(16, 1200, 150, 0.8),
        Lengths(4, 250, 50, 0.6),
        24,
    ),
    Scene("96 slots, P99 E2E 2.5 s", ("p99_e2e_ms=2500",), 24.50, Lengths(200, 400), Lengths(80, 160), 96),
    Scene(
        "48 slots, P99 TTFT 0.8 s",
        ("p99_ttft_ms=800",),
        21.56,
        Lengths(300, 1300),
        Lengths(16, 64),
        48,
        max_num_batched_tokens=4096,
    ),
    Scene(
        "12 slots, bursts, P95 E2E 3 s",
        ("p95_e2e_ms=3000",),
        14.34,
        Lengths(64, 512),
        Lengths(8, 300, 80, 0.5),
        12,
        burstiness=0.5,
    ),
    Scene("128 slots, P90 E2E 4 s", ("p90_e2e_ms=4000",), 32.66, Lengths(16, 600, 100, 0.5), Lengths(150, 250), 128),
)
