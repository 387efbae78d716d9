"""Whether a short series climbs: tests that an outlier cannot sway."""

from __future__ import annotations

import math

import numpy as np

from optimizer.core.measurement import FloatArray


def mann_kendall_z(values: FloatArray) -> float:
    """How clearly a series climbs (above 0) or falls (below 0), in standard deviations of a series without a trend.

    The Mann-Kendall statistic with its correction for ties and for continuity (Kendall, Rank Correlation Methods, 4th
    ed., 1975). It takes the values for independent: neighbours that resemble each other make it larger.

    Args:
        values: In order of time, shape (n,), finite; 0 for fewer than three.
    """
    n = values.size
    if n < 3:
        return 0.0
    later, earlier = np.tril_indices(n, -1)
    concordant = int(np.sign(values[later] - values[earlier]).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18.0
    if variance <= 0.0 or concordant == 0:
        return 0.0
    return (concordant - math.copysign(1.0, concordant)) / math.sqrt(variance)


def theil_sen_slope(at: FloatArray, values: FloatArray) -> float:
    """The median slope of all pairs (Sen, JASA 1968): change of `values` per unit of `at`.

    Args:
        at: When, shape (n,), n >= 2, all different.
        values: What, shape (n,), finite.
    """
    later, earlier = np.tril_indices(values.size, -1)
    return float(np.median((values[later] - values[earlier]) / (at[later] - at[earlier])))
