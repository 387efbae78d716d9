"""One quantity of a setting, such as its throughput or a limit's excess, as a Gaussian process over settings.

What a prior model says of a setting enters twice: as the mean, by a weight that is fitted, and as a feature, as if it
were one more parameter. The mean serves a model that is right up to a factor. The feature serves one whose figures
bend away from the engine's: what was seen at one setting tells of another of which the model says the same. Both are
left out where leave-one-out predictions speak against them: from five observations on when these are clearly worse with
them, from a dozen on unless they are clearly better.
"""

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


_FORECAST_COLUMNS = 2
"""What a prior model says, and whether it can tell nothing."""
_FORETOLD_LOG_LENGTH = 0.3
"""Median of the log length scale of what a prior model says, as a feature."""
_UNSCALED_SPREAD = 1.0
"""In log units: up to this spread over the observed settings a prior model's figures are features as they are."""
_FEWEST_TO_CHECK = 5
"""With fewer points a leave-one-out comparison says nothing of a prior model."""
_ENOUGH_TO_ASK = 12
"""From so many points on a prior model has to show its worth; before, what the first trials have in common may hide it,
as where none of them changed what a limit depends on."""
_CLEAR = 1.0
"""So much better or worse, in log density, are leave-one-out predictions clearly. They flatter a prior model: its
constants were fitted to the same trials."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a prior model says of one quantity, as seen from the observed settings.

    Attributes:
        foretold: The model.
        centre: Mean of what it says of the observed settings; its figures count from there.
        scale: What these are divided by as a feature.
    """

    foretold: Foretold
    centre: float
    scale: float

    def of(self, points: Points) -> tuple[FloatArray, FloatArray]:
        """The settings' features with those of the forecast behind them, and the means, shape (points,).

        Of a setting of which nothing can be told the mean is that of the observed ones; as a feature it is unlike any
        other, not alike to the average one.
        """
        figures = self.foretold(points.rows) - self.centre
        known = np.isfinite(figures)
        means = np.where(known, figures, 0.0)
        return np.column_stack([points.features, means / self.scale, ~known]), means


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is expected of a quantity at any setting.

    Attributes:
        process: Its posterior.
        forecast: Of a prior model; None where there is none or it is of no use.
    """

    process: GaussianProcess
    forecast: Forecast | None = None

    def predict(self, points: Points) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation without the noise of a measurement, shape (points,) each."""
        return self.process.predict(*self._seen_as(points))

    @property
    def run_variance(self) -> float:
        """Of one more run of a setting: what every run has, and what one tells of itself at the median."""
        return self.process.noise + float(np.median(self.process.data.sds)) ** 2

    def covariance(self, points: Points) -> FloatArray:
        """Posterior covariance, shape (points, points)."""
        return self.process.covariance(self._seen_as(points)[0])

    def believing(self, points: Points) -> Quantity:
        """As if these settings had been measured and came out as expected."""
        return replace(self, process=self.process.believing(*self._seen_as(points)))

    def _seen_as(self, points: Points) -> tuple[FloatArray, FloatArray]:
        """Features and means."""
        return (points.features, np.zeros(len(points))) if self.forecast is None else self.forecast.of(points)


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
    at = points[observed.places]
    plain = Data(at.features, observed.targets, observed.sds, np.zeros(len(observed)))
    forecast = None if foretold is None else _forecast(foretold, at)
    if forecast is None:
        return Quantity(fitted(plain, groups, beliefs))
    features, means = forecast.of(at)
    process = _fitted_with(replace(plain, features=features, means=means), groups, beliefs)
    if len(observed) >= _FEWEST_TO_CHECK:
        without = fitted(plain, groups, beliefs)
        gain = float(np.sum(process.leave_one_out() - without.leave_one_out()))
        if gain <= (_CLEAR if len(observed) >= _ENOUGH_TO_ASK else -_CLEAR):
            return Quantity(without)
    return Quantity(process, forecast)


def _forecast(foretold: Foretold, at: Points) -> Forecast | None:
    """None where nothing can be told of one of the observed settings: figures of the others alone mislead about it."""
    figures = foretold(at.rows)
    if not np.all(np.isfinite(figures)):
        return None
    return Forecast(foretold, float(np.mean(figures)), max(float(np.std(figures)), _UNSCALED_SPREAD))


def _fitted_with(data: Data, groups: Sequence[slice], beliefs: Beliefs) -> GaussianProcess:
    own = (*(beliefs.own_log_lengths or (None,) * len(groups)), _FORETOLD_LOG_LENGTH)
    end = groups[-1].stop
    more = slice(end, end + _FORECAST_COLUMNS)
    return fitted(data, (*groups, more), replace(beliefs, own_log_lengths=own), has_prior=True)
