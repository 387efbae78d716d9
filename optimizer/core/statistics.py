"""Percentiles and the distribution-free interval around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.core.measurement import FloatArray


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval; None stands for an end that the data do not bound."""

    low: float | None
    high: float | None


def percentile(values: FloatArray, percent: float) -> float | None:
    """The percentile by linear interpolation between order statistics, or None of no values."""
    return float(np.percentile(values, percent)) if values.size else None


def percentile_interval(values: FloatArray, percent: float, *, level: float = 0.95) -> Interval:
    """Order-statistics interval for a percentile, for independent values of any distribution.

    The number of values below the true percentile is binomial(n, percent/100); its quantiles give the ranks that
    bracket it (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2).

    Args:
        values: Shape (n,), in any unit; the interval has the same.
        percent: 0 < percent < 100.
        level: Two-sided confidence.
    """
    from scipy import stats  # takes a second to load, and only a measurement needs it

    n = values.size
    if n == 0:
        return Interval(None, None)
    ordered = np.sort(values)
    tail = (1.0 - level) / 2.0
    low_rank = int(stats.binom.ppf(tail, n, percent / 100.0))
    high_rank = int(stats.binom.ppf(1.0 - tail, n, percent / 100.0)) + 1
    low = float(ordered[low_rank - 1]) if low_rank >= 1 else None
    high = float(ordered[high_rank - 1]) if high_rank <= n else None
    return Interval(low, high)
