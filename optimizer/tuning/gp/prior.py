"""What knowledge of the engine says before the Gaussian processes look at the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from optimizer.core.measurement import FloatArray
from optimizer.tuning.strategy import Params, Seen

VALUE = "value"
"""The objective's name in a prediction."""


class FittedPrior(Protocol):
    """A model of the engine, calibrated by trials."""

    def predict(self, settings: Sequence[Params]) -> Mapping[str, FloatArray]:
        """Natural logarithms, shape (len(settings),) each, NaN where nothing can be told.

        `value` is the log of the objective, higher is better; a limit's name gives log(predicted / limit).
        """


class PriorModel(Protocol):
    """Calibrates a model of the engine by what a study has seen."""

    def fitted(self, history: Sequence[Seen]) -> FittedPrior | None:
        """None when nothing can be told."""
