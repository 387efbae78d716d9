"""A fitted prior model asked by rows of codes instead of settings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.tuning.gp.encoding import Encoding
from optimizer.tuning.gp.observations import squeezed
from optimizer.tuning.gp.prior import VALUE, FittedPrior
from optimizer.tuning.gp.quantity import Foretold


class Foresight:
    """All that a prior model says of the same rows is asked for once.

    Args:
        prior: The fitted model.
        encoding: From rows to settings.
    """

    def __init__(self, prior: FittedPrior, encoding: Encoding) -> None:
        self._prior = prior
        self._encoding = encoding
        self._asked: bytes | None = None
        self._said: Mapping[str, FloatArray] = {}

    def of(self, name: str) -> Foretold:
        """What is said of the objective or a limit; of a limit drawn in at the far ends, as observations are."""
        return lambda rows: self._of(name, rows)

    def _of(self, name: str, rows: FloatArray) -> FloatArray:
        asked = rows.tobytes()
        if asked != self._asked:
            self._said = self._prior.predict([self._encoding.params(row) for row in rows])
            self._asked = asked
        if name not in self._said:
            return np.full(len(rows), np.nan)
        said = np.asarray(self._said[name], dtype=float)
        said = np.where(np.isfinite(said), said, np.nan)
        return said if name == VALUE else squeezed(said)
