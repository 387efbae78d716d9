"""What a measurement is worth under its limits.

A failed or unfinished request counts as infinitely slow: a setting must not pass a limit by dropping its slowest
requests. As well as the stated limits, at most 1 % of the requests may fail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from optimizer.core.measurement import FloatArray, LoadResult, Measurement
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.statistics import Interval, percentile_interval
from optimizer.objectives.limits import Limit
from optimizer.objectives.objective import Objective

ERROR_RATE_LIMIT = 0.01
"""Largest share of failed requests that a setting may have: a P99 limit forgives as much, and so may any other."""
CONFIDENCE = 0.95
UNBOUNDED_VIOLATION = 1.5
"""Violation of a statistic that falls on a failed request (e^1.5 is 4.5 times the limit), unless what was measured
lies farther out: finite, so that a search can learn from it."""
_LEAST_RATIO = 1e-3
"""Keeps the logarithm finite where nothing was spent of a limit."""
_ROUNDING = 1e-9
"""A limit of exactly 1.0 x the measured value holds, whichever way both were rounded."""


def score(
    objective: Objective, limits: Sequence[Limit], measurement: Measurement, metrics: Mapping[str, float | None]
) -> Score:
    """Judges one measurement.

    Args:
        objective: What is sought.
        limits: What must hold.
        measurement: What was measured.
        metrics: The same as a table of metrics; the objective's value is read from it.

    Raises:
        ValueError: The objective's metric has no value because no request succeeded. Such a run is a failure of kind
            ERROR_RATE and must not come here.
    """
    value = metrics.get(objective.metric)
    if value is None:
        raise ValueError(f"{objective.metric} was not measured: a run without a success is a failure, not a score")
    constraints = (*(_check(limit, measurement.load) for limit in limits), _check_error_rate(measurement.load))
    return Score(objective.metric, value, objective.maximise, _overall(constraints), constraints)


def _overall(constraints: Sequence[Constraint]) -> Verdict:
    verdicts = {constraint.verdict for constraint in constraints}
    for verdict in (Verdict.INFEASIBLE, Verdict.UNDECIDED):
        if verdict in verdicts:
            return verdict
    return Verdict.FEASIBLE


def _check(limit: Limit, load: LoadResult) -> Constraint:
    values_ms = latencies_ms(load, limit.slo.metric)
    percent = limit.slo.percent
    if values_ms.size == 0:
        return Constraint(limit.slo.name, limit.limit_ms, None, None, None, None, Verdict.UNDECIDED)
    if percent is None:
        observed, interval, enough = float(np.mean(values_ms)), _mean_interval(values_ms), True
    else:
        observed = percentile_with_failures(values_ms, percent)
        interval = percentile_interval(values_ms, percent, level=CONFIDENCE)
        enough = values_ms.size >= fewest_values(percent)
    # Interpolation between few values can fall below the interval that they give.
    estimate = observed if enough or interval.low is None else max(observed, interval.low)
    return Constraint(
        name=limit.slo.name,
        limit=limit.limit_ms,
        observed=_finite(observed),
        low=_finite(interval.low),
        high=_finite(interval.high),
        violation=_violation(estimate, limit.limit_ms, values_ms),
        verdict=_verdict(observed, limit.limit_ms, interval, enough=enough),
    )


def _verdict(observed: float, limit: float, interval: Interval, *, enough: bool) -> Verdict:
    """The observed value decides; of too few values only the lower end of the interval can, and only against."""
    if enough:
        return Verdict.FEASIBLE if _holds(observed, limit) else Verdict.INFEASIBLE
    if interval.low is not None and not _holds(interval.low, limit):
        return Verdict.INFEASIBLE
    return Verdict.UNDECIDED


def _holds(value: float, limit: float) -> bool:
    return value <= limit * (1.0 + _ROUNDING)


def _violation(observed: float, limit: float, values: FloatArray) -> float:
    """log(observed / limit): at most 0 where the limit holds, above 0 where it does not, always finite."""
    if math.isinf(observed):
        finite = values[np.isfinite(values)]
        farthest = math.log(max(float(finite.max()) / limit, _LEAST_RATIO)) if finite.size else 0.0
        return max(UNBOUNDED_VIOLATION, farthest)
    ratio = math.log(max(observed / limit, _LEAST_RATIO))
    return min(0.0, ratio) if _holds(observed, limit) else ratio


def _check_error_rate(load: LoadResult) -> Constraint:
    from scipy import stats  # takes a second to load, and only a measurement needs it

    counted, failed = len(load.errors), sum(error is not None for error in load.errors)
    if counted == 0:
        return Constraint("error_rate", ERROR_RATE_LIMIT, None, None, None, None, Verdict.UNDECIDED)
    rate = failed / counted
    interval = stats.binomtest(failed, counted).proportion_ci(CONFIDENCE)
    return Constraint(
        name="error_rate",
        limit=ERROR_RATE_LIMIT,
        observed=rate,
        low=float(interval.low),
        high=float(interval.high),
        violation=_violation(rate, ERROR_RATE_LIMIT, np.array([rate])),
        verdict=Verdict.FEASIBLE if _holds(rate, ERROR_RATE_LIMIT) else Verdict.INFEASIBLE,
    )


def latencies_ms(load: LoadResult, metric: str) -> FloatArray:
    """The values a limit on `metric` is checked against: those of the successful requests, and inf for failed ones.

    A failed request stands for one value; for gaps between tokens, for as many as a successful request has on average.

    Args:
        load: What was measured.
        metric: `e2e`, `ttft`, `tpot` or `itl`.
    """
    values_s: FloatArray = getattr(load, f"{metric}_s")
    failed = sum(error is not None for error in load.errors)
    if metric == "itl" and failed:
        succeeded = len(load.errors) - failed
        failed *= max(1, math.ceil(values_s.size / succeeded)) if succeeded else 1
    return np.concatenate([values_s * 1000.0, np.full(failed, np.inf)])


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


def _mean_interval(values: FloatArray) -> Interval:
    """Student's interval for the mean; unbounded of one value, or where a request failed."""
    from scipy import stats

    if values.size < 2 or not np.isfinite(values).all():
        return Interval(None, None)
    half = float(stats.t.ppf((1.0 + CONFIDENCE) / 2.0, values.size - 1) * stats.sem(values))
    mean = float(np.mean(values))
    return Interval(mean - half, mean + half)


def _finite(value: float | None) -> float | None:
    """None for infinite values: records hold JSON, which has none."""
    return value if value is not None and math.isfinite(value) else None
