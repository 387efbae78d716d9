"""How many times one setting's figure is another's, from repeated runs, with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.core.statistics import student_quantile


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of geometric means.

    Attributes:
        value: Of the first setting's figure to the second's.
        low: Lower end of its interval, or None when the data do not bound it.
        high: Upper end, or None.
        level: Two-sided confidence of the interval.
    """

    value: float
    low: float | None
    high: float | None
    level: float


def ratio_of_means(first: FloatArray, second: FloatArray, *, level: float = 0.95) -> Ratio:
    """The ratio of the geometric means of two sets of independent runs, with Welch's interval on the logarithms.

    With d the difference of the mean logarithms, v_i the sample variance of the logarithms of set i and n_i its size,
    the interval is exp(d -+ t s), where s^2 = v_1 / n_1 + v_2 / n_2 and t is Student's quantile with
    s^4 / ((v_1 / n_1)^2 / (n_1 - 1) + (v_2 / n_2)^2 / (n_2 - 1)) degrees of freedom (Welch, Biometrika 34, 1947,
    28-35). The variances need not be equal. Logarithms make the interval one of a ratio, and noise that grows with the
    figure the same everywhere.

    Args:
        first: Shape (n,), each > 0 and finite, in any unit.
        second: Shape (m,), in the same unit.
        level: Two-sided confidence.

    Returns:
        Unbounded when one set has fewer than two runs.

    Raises:
        ValueError: A set is empty, or a figure is not above 0.
    """
    if not first.size or not second.size:
        raise ValueError("a ratio needs at least one run of each setting")
    if not all(np.isfinite(values).all() and (values > 0.0).all() for values in (first, second)):
        raise ValueError("a ratio needs finite figures above 0")
    logs = (np.log(first), np.log(second))
    difference = float(logs[0].mean() - logs[1].mean())
    value = math.exp(difference)
    if min(first.size, second.size) < 2:
        return Ratio(value, None, None, level)
    parts = [float(np.var(log, ddof=1)) / log.size for log in logs]
    variance = sum(parts)
    if variance <= 0.0:
        return Ratio(value, value, value, level)
    shares = [part / variance for part in parts]
    freedom = 1.0 / sum(share**2 / (log.size - 1) for share, log in zip(shares, logs, strict=True))
    half = student_quantile((1.0 + level) / 2.0, freedom) * math.sqrt(variance)
    return Ratio(value, math.exp(difference - half), math.exp(difference + half), level)
