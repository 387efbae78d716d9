"""What a study seeks: one metric and its direction, and what must be so for it to make sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.core.measurement import LoadResult
from optimizer.objectives.goodput import GOODPUT, goodput_per_s
from optimizer.objectives.limits import Limit

CAPACITY = "capacity_requests_per_s"
KNEE = "knee_requests_per_s"
TOKENS_PER_JOULE = "output_tokens_per_j"


@dataclass(frozen=True, slots=True)
class Objective:
    """One metric to drive up or down.

    Attributes:
        name: What people type.
        metric: Name in the table of metrics.
        maximise: True when larger is better.
        description: One sentence for listings.
        needs_limits: Whether it means nothing without a limit on a latency.
        needs_rate: Whether it is comparable only where requests arrive at a rate of their own.
    """

    name: str
    metric: str
    maximise: bool
    description: str
    needs_limits: bool = False
    needs_rate: bool = False

    @property
    def latency(self) -> str | None:
        """`e2e`, `ttft`, `tpot` or `itl` where it is a statistic of one, else None."""
        return self.metric.removesuffix("_ms").rpartition("_")[2] if self.needs_rate else None


def _latency(statistic: str, metric: str, words: str) -> Objective:
    spoken = "mean" if statistic == "mean" else f"{statistic[1:]}th percentile"
    description = f"Lowest {spoken} of {words} at the workload's arrival rate."
    return Objective(f"{statistic}_{metric}", f"{statistic}_{metric}_ms", False, description, needs_rate=True)


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
        Objective(
            "goodput", GOODPUT, True, "Most completed requests per second that each meet all limits.", needs_limits=True
        ),
        Objective(
            "capacity", CAPACITY, True, "Highest arrival rate at which every limit still holds.", needs_limits=True
        ),
        Objective("tokens_per_joule", TOKENS_PER_JOULE, True, "Most output tokens per joule of GPU or CPU."),
        *(_latency("p99", metric, words) for metric, words in _LATENCIES.items()),
        *(_latency("mean", metric, words) for metric, words in _LATENCIES.items()),
    )
}
"""Every objective by name."""


def objective_metrics(load: LoadResult, limits: Sequence[Limit]) -> dict[str, float | None]:
    """What can be told of a measurement only once its limits are known, to join its table of metrics."""
    return {GOODPUT: goodput_per_s(load, limits) if limits else None}
