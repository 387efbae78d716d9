"""One quantity of a setting, such as its throughput or a limit's excess, as a Gaussian process over settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.tuning.gp.encoding import Points
from optimizer.tuning.gp.fit import Beliefs, fitted
from optimizer.tuning.gp.observations import Observed
from optimizer.tuning.gp.regression import Data, GaussianProcess

Foretold: TypeAlias = Callable[[FloatArray], FloatArray]
"""Rows of codes to what a prior model expects of them, shape (rows,); NaN where it cannot tell."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is expected of a quantity at any setting.

    Attributes:
        process: Its posterior.
        foretold: The prior model, None without one.
        centre: Mean of what that says of the observed settings; its predictions count from there.
    """

    process: GaussianProcess
    foretold: Foretold | None = None
    centre: float = 0.0

    def predict(self, points: Points) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation without the noise of a measurement, shape (points,) each."""
        return self.process.predict(points.features, self._means(points))

    @property
    def run_variance(self) -> float:
        """Of one more run of a setting: what every run has, and what one tells of itself at the median."""
        return self.process.noise + float(np.median(self.process.data.sds)) ** 2

    def covariance(self, points: Points) -> FloatArray:
        """Posterior covariance, shape (points, points)."""
        return self.process.covariance(points.features)

    def believing(self, points: Points) -> Quantity:
        """As if these settings had been measured and came out as expected."""
        return replace(self, process=self.process.believing(points.features, self._means(points)))

    def _means(self, points: Points) -> FloatArray:
        if self.foretold is None or self.process.weight == 0.0:
            return np.zeros(len(points))
        return np.nan_to_num(self.foretold(points.rows) - self.centre)


def learnt(
    observed: Observed,
    points: Points,
    groups: Sequence[slice],
    beliefs: Beliefs,
    foretold: Foretold | None = None,
) -> Quantity:
    """Fits a quantity.

    Args:
        observed: At least one observation.
        points: Settings of the whole history.
        groups: Columns of each parameter among the features.
        beliefs: Priors of the hyperparameters.
        foretold: A prior model, or None.
    """
    means, centre = np.zeros(len(observed)), 0.0
    said = np.full(len(observed), np.nan) if foretold is None else foretold(points.rows[observed.places])
    has_prior = bool(np.any(np.isfinite(said)))
    if has_prior:
        centre = float(np.mean(said[np.isfinite(said)]))
        means = np.nan_to_num(said - centre)
    data = Data(points.features[observed.places], observed.targets, observed.sds, means)
    return Quantity(fitted(data, groups, beliefs, has_prior=has_prior), foretold, centre)
