"""Which measured setting a study recommends, and what is believed of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimizer.core.record import ParamValue, TrialRecord, best_trial
from optimizer.core.trial import TrialRole, TrialState

CONFIDENCE = 0.95
"""Probability with which a recommended setting is to keep all limits."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A measured setting and what is believed of it.

    Attributes:
        number: Of the first feasible trial that measured it.
        params: Its parameters.
        probability: That it keeps every limit.
        value: Posterior median of the objective, in its unit.
        low: Lower end of the 95 % interval of that.
        high: Upper end.
        runs: How many trials measured it.
        reason: Why this one, in words.
    """

    number: int
    params: Mapping[str, ParamValue]
    probability: float
    value: float
    low: float
    high: float
    runs: int
    reason: str

    @property
    def is_sure(self) -> bool:
        """Whether it keeps the limits with the probability that is asked for."""
        return self.probability >= CONFIDENCE


def chosen_trial(
    trials: Sequence[TrialRecord], recommendation: Recommendation | None, *, maximise: bool
) -> TrialRecord | None:
    """The trial to use: the recommended one, or the best feasible one where nothing was recommended.

    A recommendation that names no feasible trial of the search counts as none: no failed, infeasible or undecided trial
    is ever chosen.
    """
    if recommendation is not None:
        for trial in trials:
            is_usable = trial.state is TrialState.FEASIBLE and trial.role is not TrialRole.CONFIRM
            if trial.number == recommendation.number and is_usable:
                return trial
    return best_trial(list(trials), maximise=maximise)
