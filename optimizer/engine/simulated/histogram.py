"""Prometheus histograms with vLLM's bucket edges (vllm/v1/metrics/buckets.py)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

REQUEST_LATENCY_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
"""E2E latency and the phases of a request; nothing below 0.3 s is told apart."""
TIME_TO_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
INTER_TOKEN_LATENCY_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
ITERATION_TOKENS = tuple(float(2**power) for power in (0, *range(3, 15)))
REQUEST_PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def request_tokens(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, … up to the longest request."""
    edges = (mantissa * 10**power for power in range(len(str(max_model_len))) for mantissa in (1, 2, 5))
    return tuple(float(edge) for edge in edges if edge <= max_model_len)


class Histogram:
    """Counts observations by bucket.

    Args:
        edges: Upper bounds, each belonging to its bucket, in rising order; one without bound follows.
    """

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Adds one observation."""
        self._counts[bisect_left(self._edges, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """Upper bound as Prometheus writes it, and how many observations lie at or below."""
        so_far = 0
        buckets = []
        for edge, count in zip((*map(str, self._edges), "+Inf"), self._counts, strict=True):
            so_far += count
            buckets.append((edge, so_far))
        return buckets
