"""Covariance of settings: Matérn 5/2 over all parameters together, and the same over each alone.

    k(x, x') = joint * M(sum_g d_g^2 / l_g^2) + additive / G * sum_g M(d_g^2 / l_g^2) + constant

with d_g the distance in parameter g of G, l_g its length scale, and M(s) = (1 + sqrt(5 s) + 5 s / 3) exp(-sqrt(5 s))
(Rasmussen and Williams 2006, eq. 4.17). The additive part lets the effect of one parameter be known everywhere after
it was seen in one place, which few trials in many dimensions need (Duvenaud et al. 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist, pdist

from optimizer.core.measurement import FloatArray

_ROOT_5 = 5.0**0.5
_DISTANCE_DIGITS = 12
"""The distance from 0.1 to 0.3 is that from 0.3 to 0.5, whatever the last bit says."""


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


@dataclass(frozen=True, slots=True)
class PairDistances:
    """Squared distances of all pairs of points in each parameter alone, pairs in the order of `pdist`.

    Most parameters have few values, so that their many pairs have few distances: what is worked out for each of these
    is looked up for each pair.

    Attributes:
        squared: Shape (groups, pairs).
        distinct: The distances of all groups, each once, one group behind the other; shape (distances,).
        group: Whose each is, shape (distances,).
        places: Which of them a pair has, shape (groups, pairs).
    """

    squared: FloatArray
    distinct: FloatArray
    group: npt.NDArray[np.int_]
    places: npt.NDArray[np.int_]

    @classmethod
    def of(cls, features: FloatArray, groups: Sequence[slice]) -> Self:
        """Of features of shape (points, columns)."""
        squared = np.stack([pdist(features[:, columns], "sqeuclidean") for columns in groups])
        distinct, group, places, start = [], [], [], 0
        for index, distances in enumerate(squared):
            found, inverse = np.unique(np.round(distances, _DISTANCE_DIGITS), return_inverse=True)
            distinct.append(found)
            group.append(np.full(len(found), index))
            places.append(inverse + start)
            start += len(found)
        return cls(squared, np.concatenate(distinct), np.concatenate(group), np.stack(places))

    def alone(self, lengths: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of each pair the mean over parameters of `matern` in each alone, and its derivatives by the log lengths.

        Args:
            lengths: Length scales, shape (groups,).

        Returns:
            Shapes (pairs,) and (groups, pairs).
        """
        scaled = self.distinct / lengths[self.group] ** 2
        value, slope = matern_and_slope(scaled)
        return value[self.places].mean(axis=0), (slope * scaled)[self.places] / len(lengths)
