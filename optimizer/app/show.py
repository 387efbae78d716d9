"""`show`: one trial in full, beside the baseline it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.app.history import read_study
from optimizer.core.confirmation import study_trials
from optimizer.core.errors import InputError
from optimizer.core.record import TrialRecord
from optimizer.report.changes import baseline_of


@dataclass(frozen=True, slots=True)
class ShownTrial:
    """A trial, and its study's baseline (None until that was run)."""

    trial: TrialRecord
    baseline: TrialRecord | None


def read_trial(storage: str | None, study: str | None, number: int) -> ShownTrial:
    """The trial of that number.

    Raises:
        InputError: The study has no such trial, or there is no such study.
        HostError: The history cannot be read.
    """
    history = read_study(storage, study)
    found = next((trial for trial in history.trials if trial.number == number), None)
    if found is None:
        known = study_trials(history.trials)
        numbers = f"0 to {known[-1].number}" if known else "none yet"
        raise InputError(f"study {history.study.name} has no trial {number}", hint=f"its trials: {numbers}")
    return ShownTrial(found, baseline_of(history.trials))
