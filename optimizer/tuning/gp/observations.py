"""What a history says of each quantity that is modelled, in log units.

A trial that crashed says nothing of the objective or the limits, and no value is invented for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.core.scoring import Verdict
from optimizer.core.trial import TrialState
from optimizer.tuning.strategy import Estimate, Seen

_KNEE = 0.5
"""Up to e^0.5 = 1.6 times over or under a limit distances count in full; beyond it less and less."""
_LEAST_SD = 0.003
_TRUNCATED_SD = 0.15
"""Added to what is known of a trial that was ended early: it was seen for a part of its time."""
_UNBOUNDED = Estimate(1.5, 0.5)
"""A broken limit of which no figure is known: so many requests failed that the percentile is infinite."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One quantity in the trials that tell of it.

    Attributes:
        places: Index in the history of each, shape (n,).
        targets: Shape (n,).
        sds: Standard deviations, shape (n,).
    """

    places: np.ndarray
    targets: FloatArray
    sds: FloatArray

    def __len__(self) -> int:
        return len(self.targets)


def observed_values(history: Sequence[Seen]) -> Observed:
    """The log objective, higher is better."""
    return _observed((place, _trusted(trial, trial.value)) for place, trial in enumerate(history))


def observed_excess(history: Sequence[Seen], limit: str) -> Observed:
    """log(observed / limit), squeezed by `squeezed`."""
    return _observed((place, _excess(trial, limit)) for place, trial in enumerate(history))


def limit_names(history: Sequence[Seen]) -> tuple[str, ...]:
    """All limits that a trial was judged by, sorted."""
    return tuple(sorted({name for trial in history for name in (*trial.limits, *trial.verdicts)}))


def squeezed(excess: FloatArray) -> FloatArray:
    """log(observed / limit) with its far ends drawn in; rising, odd, and the identity near 0.

    How far a hopeless setting is over a limit must not shape the model where the limit is decided.
    """
    far = np.maximum(np.abs(excess) - _KNEE, 0.0)
    drawn_in: FloatArray = np.sign(excess) * (np.minimum(np.abs(excess), _KNEE) + _KNEE * np.log1p(far / _KNEE))
    return drawn_in


def _excess(trial: Seen, limit: str) -> Estimate | None:
    estimate = _trusted(trial, trial.limits.get(limit))
    if estimate is None and trial.verdicts.get(limit) is Verdict.INFEASIBLE:
        estimate = _UNBOUNDED
    if estimate is None:
        return None
    slope = 1.0 / (1.0 + max(abs(estimate.mean) - _KNEE, 0.0) / _KNEE)
    return Estimate(float(squeezed(np.array(estimate.mean))), estimate.sd * slope)


def _trusted(trial: Seen, estimate: Estimate | None) -> Estimate | None:
    if estimate is None or not math.isfinite(estimate.mean) or not math.isfinite(estimate.sd):
        return None
    sd = max(estimate.sd, _LEAST_SD)
    return Estimate(estimate.mean, math.hypot(sd, _TRUNCATED_SD) if trial.state is TrialState.DOMINATED else sd)


def _observed(estimates: Iterable[tuple[int, Estimate | None]]) -> Observed:
    there = [(place, estimate) for place, estimate in estimates if estimate is not None]
    return Observed(
        np.array([place for place, _ in there], dtype=int),
        np.array([estimate.mean for _, estimate in there]),
        np.array([estimate.sd for _, estimate in there]),
    )
