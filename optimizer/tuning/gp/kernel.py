"""Covariance of settings: Matérn 5/2 over all parameters together, and the same over each alone.

    k(x, x') = joint * M(sum_g d_g^2 / l_g^2) + additive / G * sum_g M(d_g^2 / l_g^2) + constant

with d_g the distance in parameter g of G, l_g its length scale, and M(s) = (1 + sqrt(5 s) + 5 s / 3) exp(-sqrt(5 s))
(Rasmussen and Williams 2006, eq. 4.17). The additive part lets the effect of one parameter be known everywhere after
it was seen in one place, which few trials in many dimensions need (Duvenaud et al. 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist, pdist

from optimizer.core.measurement import FloatArray

_ROOT_5 = 5.0**0.5


@dataclass(frozen=True, slots=True)
class Kernel:
    """With its hyperparameters.

    Attributes:
        groups: The columns of each parameter among the features.
        lengths: Length scale of each parameter, shape (groups,).
        joint: Variance of what the parameters do together.
        additive: Variance of the sum of what each does alone; 0 leaves the sum out.
        constant: Variance of the level.
    """

    groups: Sequence[slice]
    lengths: FloatArray
    joint: float
    additive: float
    constant: float

    @property
    def variance(self) -> float:
        """Of any setting."""
        return self.joint + self.additive + self.constant

    def __call__(self, one: FloatArray, other: FloatArray) -> FloatArray:
        """Covariances, shape (len(one), len(other)), of features of shapes (_, columns)."""
        total = np.zeros((len(one), len(other)))
        alone = np.zeros_like(total)
        for columns, length in zip(self.groups, self.lengths, strict=True):
            squared = cdist(one[:, columns] / length, other[:, columns] / length, "sqeuclidean")
            total += squared
            if self.additive > 0.0:
                alone += matern(squared)
        return self.constant + self.joint * matern(total) + self.additive / len(self.groups) * alone


def matern(squared: FloatArray) -> FloatArray:
    """Matérn 5/2 of squared scaled distances."""
    root = _ROOT_5 * np.sqrt(squared)
    found: FloatArray = (1.0 + root + root * root / 3.0) * np.exp(-root)
    return found


def matern_and_slope(squared: FloatArray) -> tuple[FloatArray, FloatArray]:
    """`matern`, and minus twice its derivative by its argument: times d^2 / l^2 that is the derivative by log l."""
    root = _ROOT_5 * np.sqrt(squared)
    decay = np.exp(-root)
    rising = (1.0 + root) * decay
    return rising + root * root / 3.0 * decay, (5.0 / 3.0) * rising


def squared_distances(features: FloatArray, groups: Sequence[slice]) -> FloatArray:
    """Of all pairs of points in each parameter alone, shape (groups, pairs), in the order of `pdist`."""
    return np.stack([pdist(features[:, columns], "sqeuclidean") for columns in groups])
