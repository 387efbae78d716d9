"""What a study seeks: one metric and its direction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Objective:
    """One metric to drive up or down.

    Attributes:
        name: What people type.
        metric: Name in the table of metrics.
        maximise: True when larger is better.
        description: One sentence for listings.
    """

    name: str
    metric: str
    maximise: bool
    description: str


def _latency(statistic: str, metric: str, words: str) -> Objective:
    spoken = "mean" if statistic == "mean" else f"{statistic[1:]}th percentile"
    return Objective(f"{statistic}_{metric}", f"{statistic}_{metric}_ms", False, f"Lowest {spoken} of {words}.")


_LATENCIES = {
    "e2e": "the end-to-end latency",
    "ttft": "the time to first token",
    "tpot": "the time per output token",
    "itl": "the inter-token latency",
}

OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        Objective("throughput", "output_tokens_per_s", True, "Most output tokens per second."),
        Objective("request_throughput", "requests_per_s", True, "Most completed requests per second."),
        *(_latency("p99", metric, words) for metric, words in _LATENCIES.items()),
        *(_latency("mean", metric, words) for metric, words in _LATENCIES.items()),
    )
}
"""Every objective by name."""
