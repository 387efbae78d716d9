"""The score of figures that somebody else measured: a value and its standard error, and no requests to look at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from optimizer.core.reported import ReportedMetrics
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.objectives.limits import Limit
from optimizer.objectives.objective import Objective
from optimizer.objectives.rules import USUAL_RULES, VerdictRules
from optimizer.objectives.score import holds, on_the_side_of, overall, violation_of

ERROR_RATE = "error_rate"
_WIDEST = 50.0
"""Reach of an interval in log units: a factor of e^50 decides nothing, and e^710 is no float."""


@dataclass(frozen=True, slots=True)
class _Interval:
    low: float
    high: float


def score_reported(
    objective: Objective,
    limits: Sequence[Limit],
    reported: ReportedMetrics,
    rules: VerdictRules = USUAL_RULES,
) -> Score:
    """Judges reported figures.

    With a standard error a limit is decided by the interval `value * exp(-+ z * error / value)`, where z is the normal
    quantile of 1 - `rules.level`: the error of the logarithm of a figure is the figure's own relative error, to first
    order. Without one it is decided by the value alone, as if that were certain. The share of failed requests is
    judged where it was reported.

    Args:
        objective: What is sought.
        limits: What must hold, in milliseconds.
        reported: The figures; the objective's and those of all limits are among them.
        rules: How sure a verdict must be.

    Raises:
        KeyError: One of those is missing.
    """
    bounds = [(limit.slo.name, limit.limit_ms, limit.own) for limit in limits]
    if ERROR_RATE in reported.values:
        bounds.append((ERROR_RATE, rules.error_rate, False))
    constraints = tuple(_check(name, bound, reported, rules, own=own) for name, bound, own in bounds)
    interval = _interval(objective.metric, reported, rules)
    return Score(
        objective.metric,
        reported.values[objective.metric],
        objective.maximise,
        overall(constraints),
        constraints,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        confidence=None if interval is None else rules.confidence,
    )


def _check(name: str, bound: float, reported: ReportedMetrics, rules: VerdictRules, *, own: bool) -> Constraint:
    observed = reported.values[name]
    interval = _interval(name, reported, rules)
    if own or interval is None:
        verdict = Verdict.FEASIBLE if holds(observed, bound) else Verdict.INFEASIBLE
    else:
        verdict = _decided(interval, bound, rules)
    return Constraint(
        name=name,
        limit=bound,
        observed=observed,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        violation=on_the_side_of(verdict, violation_of(observed, bound, np.array([observed]))),
        verdict=verdict,
        confidence=None if interval is None else rules.confidence,
    )


def _decided(interval: _Interval, bound: float, rules: VerdictRules) -> Verdict:
    if holds(interval.high, bound * (1.0 + rules.tolerance)):
        return Verdict.FEASIBLE
    if not holds(interval.low, bound * (1.0 - rules.tolerance)):
        return Verdict.INFEASIBLE
    return Verdict.UNDECIDED


def _interval(name: str, reported: ReportedMetrics, rules: VerdictRules) -> _Interval | None:
    """Of a figure with a standard error. One of 0 has no logarithm: its interval reaches up by z errors."""
    error = reported.standard_errors.get(name)
    if error is None:
        return None
    value, z = reported.values[name], NormalDist().inv_cdf(1.0 - rules.level)
    if value == 0.0:
        return _Interval(0.0, z * error)
    reach = min(z * error / value, _WIDEST)
    return _Interval(value * math.exp(-reach), value * math.exp(reach))
