"""Verdicts that may be asked for at any time while requests come in, and intervals that pay for correlation."""

from optimizer.objectives.sequential.dominance import cannot_beat, optimistic_mean
from optimizer.objectives.sequential.intervals import (
    block_means,
    effective_requests,
    mean_interval,
    tail_percentile_interval,
)
from optimizer.objectives.sequential.verdict import SequentialVerdict, SloTest, VerdictState, judge

__all__ = [
    "SequentialVerdict",
    "SloTest",
    "VerdictState",
    "block_means",
    "cannot_beat",
    "effective_requests",
    "judge",
    "mean_interval",
    "optimistic_mean",
    "tail_percentile_interval",
]
