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
        beyond_per_s: Where it crosses 1.05 times the limit, above which FEASIBLE is wrong.
        slos: Limits.
        burstiness: Shape of the gamma arrivals; 1 is Poisson.
        stalls_per_s: How often the engine stops for `stall_s`, at random times.
        stall_s: For how long.
        crowding: By so much a step takes longer with a full batch than the engine's linear model says; by a quarter of
            that with half a batch.
    """

    name: str
    slos: tuple[str, ...]
    knee_per_s: float
    beyond_per_s: float
    prompt_tokens: Lengths
    output_tokens: Lengths
    max_num_seqs: int
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    pool_tokens: int = 400_000
    burstiness: float = 1.0
    stalls_per_s: float = 0.0
    stall_s: float = 0.0
    crowding: float = 0.0


DESIGN = (
    Scene("16 slots, P99 E2E 2 s", ("p99_e2e_ms=2000",), 27.09, 27.20, Lengths(64, 255), Lengths(32, 95), 16),
    Scene(
        "256 slots, P99 E2E 6 s",
        ("p99_e2e_ms=6000",),
        29.54,
        30.46,
        Lengths(16, 1000, 200, 0.6),
        Lengths(8, 500, 120, 0.5),
        256,
    ),
    Scene("64 slots, P95 TTFT 0.5 s", ("p95_ttft_ms=500",), 22.66, 22.73, Lengths(100, 900), Lengths(16, 200), 64),
    Scene("32 slots, P95 E2E 1.2 s", ("p95_e2e_ms=1200",), 40.29, 40.76, Lengths(64, 255), Lengths(32, 95), 32),
    Scene(
        "40 slots, P99 TTFT 1 s",
        ("p99_ttft_ms=1000",),
        26.89,
        27.00,
        Lengths(200, 900),
        Lengths(20, 80),
        40,
        max_num_batched_tokens=4096,
    ),
    Scene(
        "100 slots, P90 E2E 3 s", ("p90_e2e_ms=3000",), 34.60, 35.33, Lengths(20, 500, 120, 0.5), Lengths(120, 200), 100
    ),
    Scene(
        "16 slots, bursts, P95 E2E 2.5 s",
        ("p95_e2e_ms=2500",),
        20.79,
        20.90,
        Lengths(64, 400),
        Lengths(10, 250, 70, 0.5),
        16,
        burstiness=0.6,
    ),
    Scene(
        "48 slots, stalls, P99 E2E 3.5 s",
        ("p99_e2e_ms=3500",),
        37.50,
        37.59,
        Lengths(64, 400),
        Lengths(40, 120),
        48,
        stalls_per_s=0.04,
        stall_s=0.4,
    ),
    Scene(
        "64 slots, crowded, P95 E2E 3 s",
        ("p95_e2e_ms=3000",),
        24.54,
        24.62,
        Lengths(64, 400),
        Lengths(20, 160),
        64,
        crowding=0.6,
    ),
    Scene(
        "32 slots, long-tailed, P99 E2E 5 s",
        ("p99_e2e_ms=5000",),
        34.23,
        34.32,
        Lengths(16, 1200, 180, 0.8),
        Lengths(4, 300, 60, 0.6),
        32,
    ),
)
"""Those that the constants of the search were chosen on."""
JUDGING = (
    Scene(
        "28 slots, long-tailed, P99 E2E 3.5 s",
        ("p99_e2e_ms=3500",),
        42.14,
        42.24,
        Lengths(16, 1000, 140, 0.75),
        Lengths(4, 220, 45, 0.65),
        28,
    ),
    Scene(
        "200 slots, P99 E2E 7 s",
        ("p99_e2e_ms=7000",),
        30.47,
        31.08,
        Lengths(30, 600, 150, 0.6),
        Lengths(80, 320),
        200,
    ),
    Scene("72 slots, P99 TTFT 0.7 s", ("p99_ttft_ms=700",), 29.50, 29.60, Lengths(80, 700), Lengths(20, 160), 72),
    Scene(
        "20 slots, bursts, P95 E2E 3.5 s",
        ("p95_e2e_ms=3500",),
        17.96,
        18.06,
        Lengths(50, 600),
        Lengths(10, 350, 90, 0.5),
        20,
        burstiness=0.5,
    ),
    Scene(
        "112 slots, P90 E2E 4.5 s",
        ("p90_e2e_ms=4500",),
        27.85,
        28.40,
        Lengths(16, 700, 160, 0.5),
        Lengths(120, 280),
        112,
    ),
    Scene(
        "44 slots, crowded and stalls, P99 E2E 4 s",
        ("p99_e2e_ms=4000",),
        22.14,
        22.36,
        Lengths(60, 500),
        Lengths(30, 130),
        44,
        stalls_per_s=0.05,
        stall_s=0.3,
        crowding=0.5,
    ),
)
"""Those that the search met once, after all that. The last one is an engine that its own model does not know."""
JUDGED_FIRST = (
    Scene(
        "20 slots, long-tailed, P99 E2E 3 s",
        ("p99_e2e_ms=3000",),
        39.11,
        39.21,
        Lengths(16, 900, 120, 0.7),
        Lengths(4, 200, 40, 0.7),
        20,
    ),
    Scene("160 slots, P99 E2E 5 s", ("p99_e2e_ms=5000",), 34.13, 34.89, Lengths(50, 350), Lengths(60, 240), 160),
    Scene(
        "56 slots, P99 TTFT 1.2 s",
        ("p99_ttft_ms=1200",),
        23.86,
        23.94,
        Lengths(100, 1100),
        Lengths(24, 120),
        56,
        max_num_batched_tokens=4096,
    ),
    Scene(
        "28 slots, bursts, P95 E2E 4 s",
        ("p95_e2e_ms=4000",),
        20.28,
        20.40,
        Lengths(32, 800, 200, 0.6),
        Lengths(16, 400, 110, 0.5),
        28,
        burstiness=0.4,
    ),
    Scene("80 slots, P90 E2E 3.5 s", ("p90_e2e_ms=3500",), 24.40, 24.94, Lengths(100, 500), Lengths(100, 220), 80),
    Scene(
        "36 slots, crowded and stalls, P95 TTFT 0.9 s",
        ("p95_ttft_ms=900",),
        19.49,
        19.56,
        Lengths(100, 600),
        Lengths(20, 140),
        36,
        stalls_per_s=0.03,
        stall_s=0.5,
        crowding=0.4,
    ),
)
"""Those that the search met once, before its last changes."""
JUDGED_BEFORE = (
    Scene(
        "24 slots, long-tailed, P99 E2E 4 s",
        ("p99_e2e_ms=4000",),
        35.53,
        35.61,
        Lengths(16, 1200, 150, 0.8),
        Lengths(4, 250, 50, 0.6),
        24,
    ),
    Scene("96 slots, P99 E2E 2.5 s", ("p99_e2e_ms=2500",), 24.40, 25.30, Lengths(200, 400), Lengths(80, 160), 96),
    Scene(
        "48 slots, P99 TTFT 0.8 s",
        ("p99_ttft_ms=800",),
        21.37,
        21.48,
        Lengths(300, 1300),
        Lengths(16, 64),
        48,
        max_num_batched_tokens=4096,
    ),
    Scene(
        "12 slots, bursts, P95 E2E 3 s",
        ("p95_e2e_ms=3000",),
        14.25,
        14.34,
        Lengths(64, 512),
        Lengths(8, 300, 80, 0.5),
        12,
        burstiness=0.5,
    ),
    Scene(
        "128 slots, P90 E2E 4 s", ("p90_e2e_ms=4000",), 32.56, 33.24, Lengths(16, 600, 100, 0.5), Lengths(150, 250), 128
    ),
)
"""Those that an earlier search was judged on."""
