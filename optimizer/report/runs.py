"""How many runs stand behind the figures of a trial."""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.core.confirmation import study_trials
from optimizer.core.record import TrialRecord


def measured_runs(trials: Sequence[TrialRecord], trial: TrialRecord) -> int:
    """How many trials of the search measured the setting of this one, itself included.

    A search measures its best setting again when the lead is doubtful. Repeats on held-out traffic are counted apart.
    """
    return sum(other.score is not None and other.config == trial.config for other in study_trials(list(trials)))


def runs_text(trials: Sequence[TrialRecord], trial: TrialRecord) -> str:
    """The same in words."""
    runs = measured_runs(trials, trial)
    if runs == 1:
        return f"one run measured #{trial.number}"
    return f"{runs} runs measured the setting of #{trial.number} (its figures are those of #{trial.number} alone)"
