"""What a measurement is worth under its limits.

Limits on a percentile are judged by the sequential test (docs/verdict.md), limits on a mean by an interval from means
of blocks. As well as the stated limits, no more than a set share of the requests may fail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from optimizer.core.measurement import FloatArray, LoadResult, Measurement
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.stop_reason import StopReason
from optimizer.objectives.failures import judge_failures
from optimizer.objectives.intervals import mean_latency_interval, metric_interval
from optimizer.objectives.latencies import Latencies, latencies
from optimizer.objectives.limits import Limit
from optimizer.objectives.objective import Objective
from optimizer.objectives.rules import USUAL_RULES, VerdictRules
from optimizer.objectives.sequential import SloTest, judge

UNBOUNDED_VIOLATION = 1.5
"""Violation of a statistic that falls on a failed request (e^1.5 is 4.5 times the limit), unless what was measured
lies farther out: finite, so that a search can learn from it."""
_LEAST_RATIO = 1e-3
"""Keeps the logarithm finite where nothing was spent of a limit."""
_LEAST_VIOLATION = 1e-3
"""Of a limit that is judged broken though what was observed lies just below it, within the tolerance."""
_ROUNDING = 1e-9
"""A limit of exactly 1.0 x the measured value holds, whichever way both were rounded."""
_QUEUED = ("ttft", "e2e")
"""What grows without end when more requests come than are served."""


def score(
    objective: Objective,
    limits: Sequence[Limit],
    measurement: Measurement,
    metrics: Mapping[str, float | None],
    rules: VerdictRules = USUAL_RULES,
) -> Score:
    """Judges one measurement.

    Args:
        objective: What is sought.
        limits: What must hold.
        measurement: What was measured.
        metrics: The same as a table of metrics; the objective's value is read from it.
        rules: How sure a verdict must be.

    Raises:
        ValueError: The objective's metric has no value because no request succeeded. Such a run is a failure of kind
            ERROR_RATE and must not come here.
    """
    value = metrics.get(objective.metric)
    if value is None:
        raise ValueError(f"{objective.metric} was not measured: a run without a success is a failure, not a score")
    load = measurement.load
    constraints = (*(check_limit(limit, load, rules) for limit in limits), check_failures(load, rules))
    interval = metric_interval(load, objective.metric, value, limits, confidence=rules.confidence)
    known = interval is not None
    return Score(
        objective.metric,
        value,
        objective.maximise,
        overall(constraints),
        constraints,
        low=interval.low if interval is not None else None,
        high=interval.high if interval is not None else None,
        confidence=rules.confidence if known else None,
    )


def overall(constraints: Sequence[Constraint]) -> Verdict:
    """INFEASIBLE when a limit is, else UNDECIDED when a limit is, else FEASIBLE."""
    verdicts = {constraint.verdict for constraint in constraints}
    for verdict in (Verdict.INFEASIBLE, Verdict.UNDECIDED):
        if verdict in verdicts:
            return verdict
    return Verdict.FEASIBLE


def check_limit(limit: Limit, load: LoadResult, rules: VerdictRules) -> Constraint:
    """One limit against one load run."""
    found = latencies(load, limit.slo.metric)
    known_ms = found.known_ms
    if known_ms.size == 0:
        return Constraint(limit.slo.name, limit.limit_ms, None, None, None, None, _presumed(limit, load), 0)
    if limit.slo.percent is None:
        return _check_mean(limit, known_ms, load, rules)
    return _check_percentile(limit, limit.slo.percent, found, load, rules)


def _check_percentile(
    limit: Limit, percent: float, found: Latencies, load: LoadResult, rules: VerdictRules
) -> Constraint:
    test = SloTest(percent, limit.limit_ms, rules.level, rules.tolerance)
    state = judge(test, found.for_judge_ms, pending=found.pending)
    observed = percentile_with_failures(found.known_ms, percent)
    verdict = state.verdict
    if limit.own:
        verdict = Verdict.FEASIBLE if holds(observed, limit.limit_ms) else Verdict.INFEASIBLE
    elif verdict is Verdict.UNDECIDED or _is_contradicted(verdict, observed, test):
        verdict = _presumed(limit, load)
    return Constraint(
        name=limit.slo.name,
        limit=limit.limit_ms,
        observed=_finite(observed),
        low=state.interval_low,
        high=state.interval_high,
        violation=on_the_side_of(verdict, violation_of(observed, limit.limit_ms, found.known_ms)),
        verdict=verdict,
        n=state.n,
        n_effective=state.n_effective,
        confidence=rules.confidence,
    )


def _is_contradicted(verdict: Verdict, observed: float, test: SloTest) -> bool:
    """Whether what came after an early decision speaks against it: a queue that grows is short at first."""
    return observed >= test.upper if verdict is Verdict.FEASIBLE else observed <= test.lower


def _check_mean(limit: Limit, known_ms: FloatArray, load: LoadResult, rules: VerdictRules) -> Constraint:
    observed = float(np.mean(known_ms))
    interval = mean_latency_interval(known_ms, level=rules.confidence)
    verdict = _presumed(limit, load)
    if limit.own or math.isinf(observed):
        verdict = Verdict.FEASIBLE if holds(observed, limit.limit_ms) else Verdict.INFEASIBLE
    elif interval.high is not None and holds(interval.high, limit.limit_ms * (1.0 + rules.tolerance)):
        verdict = Verdict.FEASIBLE
    elif interval.low is not None and not holds(interval.low, limit.limit_ms * (1.0 - rules.tolerance)):
        verdict = Verdict.INFEASIBLE
    return Constraint(
        name=limit.slo.name,
        limit=limit.limit_ms,
        observed=_finite(observed),
        low=interval.low,
        high=interval.high,
        violation=on_the_side_of(verdict, violation_of(observed, limit.limit_ms, known_ms)),
        verdict=verdict,
        n=known_ms.size,
        confidence=rules.confidence,
    )


def _presumed(limit: Limit, load: LoadResult) -> Verdict:
    """What holds of a limit that the values so far leave open."""
    if load.stopped_by is StopReason.SATURATED and limit.slo.metric in _QUEUED:
        return Verdict.INFEASIBLE
    return Verdict.UNDECIDED


def check_failures(load: LoadResult, rules: VerdictRules) -> Constraint:
    """The share of failed requests against the largest that is allowed."""
    failed = ~load.ok[~load.pending]
    state = judge_failures(failed, rules)
    observed = float(np.mean(failed)) if failed.size else None
    violation = None if observed is None else violation_of(observed, rules.error_rate, np.array([observed]))
    return Constraint(
        name="error_rate",
        limit=rules.error_rate,
        observed=observed,
        low=state.low,
        high=state.high,
        violation=None if violation is None else on_the_side_of(state.verdict, violation),
        verdict=state.verdict,
        n=failed.size,
        confidence=rules.confidence if failed.size else None,
    )


def holds(value: float, limit: float) -> bool:
    """Whether a value keeps an upper bound, whichever way both were rounded."""
    return value <= limit * (1.0 + _ROUNDING)


def violation_of(observed: float, limit: float, values: FloatArray) -> float:
    """log(observed / limit): at most 0 where the limit holds, above 0 where it does not, always finite.

    Args:
        observed: What was measured; may be infinite.
        limit: The bound, >= 0; anything above a bound of 0 has no logarithm, and the violation of a failed request.
        values: What `observed` was told from, in the same unit; for one that is infinite the farthest of them counts.
    """
    if limit == 0.0:
        return UNBOUNDED_VIOLATION if observed > 0.0 else 0.0
    if math.isinf(observed):
        finite = values[np.isfinite(values)]
        farthest = math.log(max(float(finite.max()) / limit, _LEAST_RATIO)) if finite.size else 0.0
        return max(UNBOUNDED_VIOLATION, farthest)
    ratio = math.log(max(observed / limit, _LEAST_RATIO))
    return min(0.0, ratio) if holds(observed, limit) else ratio


def on_the_side_of(verdict: Verdict, violation: float) -> float:
    """Within the tolerance the observed value may lie on the other side of the limit than the verdict."""
    if verdict is Verdict.FEASIBLE:
        return min(violation, 0.0)
    return max(violation, _LEAST_VIOLATION) if verdict is Verdict.INFEASIBLE else violation


def percentile_with_failures(values: FloatArray, percent: float) -> float:
    """The percentile by linear interpolation, as `np.percentile`, where some values may be +inf.

    It is +inf as soon as the interpolation touches an infinite value; NumPy gives NaN there.

    Args:
        values: Shape (n,), n >= 1, in any unit; no NaN.
        percent: 0 < percent < 100.
    """
    finite = values[np.isfinite(values)]
    last_touched = math.ceil((values.size - 1) * percent / 100.0)
    if last_touched >= finite.size:
        return math.inf
    # Infinite values that are not touched only need to be the largest; NumPy would multiply them by 0.
    return float(np.percentile(np.minimum(values, finite.max()), percent))


def fewest_values(percent: float) -> int:
    """Below so many values the percentile is simply the largest of them: 1 / (1 - percent / 100), rounded up."""
    # Rounded first, since 1 - 0.99 is a little more than 0.01 in binary.
    return math.ceil(round(100.0 / (100.0 - percent), 6))


def _finite(value: float | None) -> float | None:
    """None for infinite values: records hold JSON, which has none."""
    return value if value is not None and math.isfinite(value) else None
