"""What a history lets one expect of any setting: its value, whether it keeps each limit, whether its engine serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from scipy.special import log_ndtr

from optimizer.core.measurement import FloatArray
from optimizer.core.recommendation import CONFIDENCE
from optimizer.tuning.gp.encoding import Encoding, Points
from optimizer.tuning.gp.fit import Beliefs
from optimizer.tuning.gp.foresight import Foresight
from optimizer.tuning.gp.observations import Observed, limit_names, observed_excess, observed_values
from optimizer.tuning.gp.prior import VALUE, PriorModel
from optimizer.tuning.gp.quantity import Quantity, learnt
from optimizer.tuning.gp.survival import MemoryOf, Survival, learnt_survival
from optimizer.tuning.strategy import Seen

VALUE_BELIEFS = Beliefs(spread=0.4)
LIMIT_BELIEFS = Beliefs(spread=0.4, noise_sd=0.03)
_SURE_SDS = NormalDist().inv_cdf(CONFIDENCE)
"""So far below a limit a mean lies when the limit is known to hold, as a recommendation asks."""
_LEAST_VARIANCE = 1e-12


@dataclass(frozen=True, slots=True)
class Outlook:
    """Posteriors after a history.

    Attributes:
        encoding: From settings to rows.
        points: The settings of the history.
        value: Of the log objective; None while nothing was measured.
        limits: Of the squeezed excess over each limit that was ever in question.
        survival: Of the engine.
    """

    encoding: Encoding
    points: Points
    value: Quantity | None
    limits: Mapping[str, Quantity]
    survival: Survival

    def log_feasible(self, points: Points) -> FloatArray:
        """log P(every limit holds), the limits taken as independent; shape (points,)."""
        total = np.zeros(len(points))
        for limit in self.limits.values():
            mean, sd = limit.predict(points)
            total += log_ndtr(-mean / sd)
        return total

    def log_sure_after_run(self, points: Points) -> FloatArray:
        """log P(after one more run of it a setting is known to keep each limit with 95 %), shape (points,).

        A run with noise n moves the mean of a limit from m by N(0, s^2 - a^2) and leaves its standard deviation
        s at a, 1 / a^2 = 1 / s^2 + 1 / n^2; it is known then where m + move < -1.645 a. Limits taken as independent.
        """
        total = np.zeros(len(points))
        for limit in self.limits.values():
            mean, sd = limit.predict(points)
            noise = limit.run_variance
            after = sd**2 * noise / (sd**2 + noise)
            moves = np.sqrt(np.maximum(sd**2 - after, _LEAST_VARIANCE))
            total += log_ndtr((-mean - _SURE_SDS * np.sqrt(after)) / moves)
        return total

    def believing(self, points: Points) -> Outlook:
        """As if these settings had been measured and came out as expected."""
        return replace(
            self,
            value=None if self.value is None else self.value.believing(points),
            limits={name: limit.believing(points) for name, limit in self.limits.items()},
        )


def outlook(
    history: Sequence[Seen], encoding: Encoding, *, prior: PriorModel | None = None, memory_of: MemoryOf | None = None
) -> Outlook:
    """Fits every quantity to a history.

    Args:
        history: Ended trials.
        encoding: Of the space.
        prior: A model of the engine whose predictions are the processes' means, as far as they fit.
        memory_of: What the memory account foretells of a setting.
    """
    rows = [encoding.row(trial.params, trial.config) for trial in history]
    points = encoding.points(np.array(rows).reshape(-1, len(encoding.axes)))
    fitted = None if prior is None or not len(history) else prior.fitted(history)
    foresight = None if fitted is None else Foresight(fitted, encoding)

    def quantity(observed: Observed, name: str, beliefs: Beliefs) -> Quantity:
        foretold = None if foresight is None else foresight.of(name)
        return learnt(observed, points, encoding.groups, beliefs, foretold)

    values = observed_values(history)
    excesses = {name: observed_excess(history, name) for name in limit_names(history)}
    return Outlook(
        encoding,
        points,
        quantity(values, VALUE, VALUE_BELIEFS) if len(values) else None,
        {name: quantity(seen, name, LIMIT_BELIEFS) for name, seen in excesses.items() if _is_in_question(seen)},
        learnt_survival(history, points, encoding, memory_of),
    )


def _is_in_question(excess: Observed) -> bool:
    """False for a limit that no trial came near: the same figure every time, far under it."""
    return len(excess) > 0 and not (np.ptp(excess.targets) == 0.0 and excess.targets[0] < -0.5)
