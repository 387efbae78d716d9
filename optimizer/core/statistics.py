"""Percentiles and the distribution-free interval around them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from optimizer.core.measurement import FloatArray


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval; None stands for an end that the data do not bound."""

    low: float | None
    high: float | None


_ROUNDING = 1e-13
"""Relative error of a binomial probability."""


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
    n = values.size
    if n == 0:
        return Interval(None, None)
    ordered = np.sort(values)
    tail = (1.0 - level) / 2.0
    low_rank = binomial_quantile(tail, n, percent / 100.0)
    high_rank = binomial_quantile(1.0 - tail, n, percent / 100.0) + 1
    low = float(ordered[low_rank - 1]) if low_rank >= 1 else None
    high = float(ordered[high_rank - 1]) if high_rank <= n else None
    return Interval(low, high)


def student_quantile(probability: float, freedom: float) -> float:
    """Of Student's t distribution with so many degrees of freedom, which need not be whole.

    These three stand here for `scipy.stats`, which takes a second to load, and each command that measures loads it.
    """
    from scipy import special  # takes a third of a second to load, and only a measurement needs it

    return float(special.stdtrit(freedom, probability))


def binomial_quantile(probability: float, n: int, share: float) -> int:
    """The least k with P(Binomial(n, share) <= k) >= probability."""
    from scipy import special  # as above

    k = math.ceil(float(special.bdtrik(probability, n, share)))
    # The continuous solution may lie above a whole number by rounding alone.
    return k - 1 if k > 0 and special.bdtr(k - 1, n, share) >= probability * (1.0 - _ROUNDING) else k


def share_interval(count: int, n: int, *, level: float) -> tuple[float, float]:
    """The exact interval for a share of which `count` in `n` was seen (Clopper and Pearson, Biometrika 1934)."""
    from scipy import special  # as above

    tail = (1.0 - level) / 2.0
    low = 0.0 if count == 0 else float(special.betaincinv(count, n - count + 1, tail))
    high = 1.0 if count == n else float(special.betaincinv(count + 1, n - count, 1.0 - tail))
    return low, high
