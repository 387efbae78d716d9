"""What a measurement is worth: a value, limits that hold or not, and a three-way verdict."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """Whether the limits hold. UNDECIDED is an answer: the data do not tell."""

    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Constraint:
    """One limit against one measurement.

    Attributes:
        name: The limit as metric name, such as `p99_e2e_ms`.
        limit: Its value in the metric's unit.
        observed: What was measured, or None when nothing was.
        low: Lower end of the interval for the true value, or None when unbounded.
        high: Upper end, or None when unbounded.
        violation: log(observed / limit): > 0 is over the limit; None when nothing was measured. It is on the side of 0
            that the verdict says.
        verdict: What the data say of this limit alone.
        n: How many values it rests on: requests, or gaps between tokens; None in records that do not have it.
        n_effective: How many independent ones they are worth, or None where that was not estimated.
        confidence: Two-sided confidence of the interval; None in records that do not have it, where it was 0.95.
    """

    name: str
    limit: float
    observed: float | None
    low: float | None
    high: float | None
    violation: float | None
    verdict: Verdict
    n: int | None = None
    n_effective: float | None = None
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """A measurement judged by an objective and its limits.

    Attributes:
        metric: Name of the objective's metric.
        value: Its value.
        maximise: Direction: True when larger is better.
        verdict: FEASIBLE only when every limit is.
        constraints: One per limit, in the order they were given.
        low: Lower end of the interval for the true value, or None when unbounded or not estimated.
        high: Upper end, or None.
        confidence: Two-sided confidence of that interval, or None where there is none.
    """

    metric: str
    value: float
    maximise: bool
    verdict: Verdict
    constraints: tuple[Constraint, ...] = ()
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
