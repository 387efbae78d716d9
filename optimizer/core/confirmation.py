"""How the trials that confirm a winner are numbered: the number alone tells what each of them repeats.

Trial 1,000,000 + 100 w + p is run p (from 0) of the confirmation of trial w against the baseline. No search comes near
such numbers, a resumed confirmation finds what it has, and the runs of two winners never mix.
"""

from __future__ import annotations

import enum

from optimizer.core.record import TrialRecord
from optimizer.core.trial import TrialRole

FIRST_NUMBER = 1_000_000
_RUNS = 100
MOST_REPEATS = _RUNS // 2
FEWEST_REPEATS = 3
"""Of two runs each, a 95 % interval is too wide to tell anything."""


class Arm(enum.StrEnum):
    """Which of the two settings a run repeats."""

    BASELINE = "baseline"
    WINNER = "winner"


def confirmation_number(winner: int, run: int) -> int:
    """The trial number of run `run` of the confirmation of trial `winner`.

    >>> confirmation_number(7, 4)
    1000704
    """
    if not 0 <= run < _RUNS:
        raise ValueError(f"run {run} of a confirmation does not lie in 0 to {_RUNS - 1}")
    return FIRST_NUMBER + _RUNS * winner + run


def confirmed_trial(number: int) -> int:
    """The winner that a trial of a confirmation belongs to."""
    return (number - FIRST_NUMBER) // _RUNS


def run_of(number: int) -> int:
    """Which run of its confirmation a trial is, from 0."""
    return (number - FIRST_NUMBER) % _RUNS


def arm_of(run: int) -> Arm:
    """What a run repeats: baseline, winner, winner, baseline, baseline, winner, and so on.

    In this order (ABBA) a drift of the machine that is even over four runs falls on both alike.
    """
    return Arm.WINNER if run % 4 in (1, 2) else Arm.BASELINE


def confirmation_trials(trials: list[TrialRecord], winner: int) -> list[TrialRecord]:
    """The trials of one confirmation, in the order of their runs."""
    chosen = [t for t in trials if t.role is TrialRole.CONFIRM and confirmed_trial(t.number) == winner]
    return sorted(chosen, key=lambda trial: trial.number)


def study_trials(trials: list[TrialRecord]) -> list[TrialRecord]:
    """The trials of the search, baseline and defaults included; those of confirmations left out."""
    return [trial for trial in trials if trial.role is not TrialRole.CONFIRM]
