"""Whether a running measurement can still beat the best one so far."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.core.statistics import student_quantile
from optimizer.objectives.sequential.intervals import lag_one_correlation

FEWEST_BLOCKS = 10
"""Below so many blocks their spread is not known well enough to stop a measurement on it."""
_SHARPEST_AT = 30.0
"""The bound is narrowest, relative to what is possible, after about so many blocks."""


def optimistic_mean(values_per_block: FloatArray, *, maximise: bool, level: float = 0.05) -> float | None:
    """The best value that the true mean may still have; valid whenever it is looked at.

    A Gaussian-mixture confidence sequence with the estimated variance (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
    Annals of Statistics 2024, one-sided form), widened by Student's factor for few blocks and by (1 + r) / (1 - r) in
    variance for the correlation r between blocks, to which two of its own standard errors are added.

    Args:
        values_per_block: Such as output tokens of each second, in order, shape (n,).
        maximise: True for an upper bound, False for a lower one.
        level: Chance that the bound is ever wrong.

    Returns:
        None while there are fewer than `FEWEST_BLOCKS`, or when a value is not finite.
    """
    n = values_per_block.size
    if n < FEWEST_BLOCKS or not np.isfinite(values_per_block).all():
        return None
    correlation = min(max(lag_one_correlation(values_per_block) + 2.0 / math.sqrt(n), 0.0), 0.9)
    scale = float(np.std(values_per_block, ddof=1)) * math.sqrt((1.0 + correlation) / (1.0 - correlation))
    student = student_quantile(1.0 - level / 4.0, n - 1) / NormalDist().inv_cdf(1.0 - level / 4.0)
    rho2 = (2.0 * math.log(1.0 / level) + math.log(1.0 + 2.0 * math.log(1.0 / level))) / _SHARPEST_AT
    grown = n * rho2 + 1.0
    half = math.sqrt(2.0 * grown / (n * n * rho2) * math.log1p(math.sqrt(grown) / (2.0 * level)))
    shift = scale * student * half
    mean = float(np.mean(values_per_block))
    return mean + shift if maximise else mean - shift


def cannot_beat(values_per_block: FloatArray, incumbent: float, *, maximise: bool, level: float = 0.05) -> bool:
    """True once even the optimistic mean is worse than the incumbent's value; False while that is open.

    Args:
        values_per_block: Such as output tokens of each second, in order, shape (n,).
        incumbent: Value of the best measurement so far, in the same unit.
        maximise: True when larger is better.
        level: Chance of ever saying so of a measurement that is as good as the incumbent.
    """
    best = optimistic_mean(values_per_block, maximise=maximise, level=level)
    if best is None:
        return False
    return best < incumbent if maximise else best > incumbent
