"""`status`: what studies a history holds, and how the trials of each ended."""

from __future__ import annotations

from optimizer.app.history import StudyHistory, open_history, present_trials


def read_studies(storage: str | None) -> list[StudyHistory]:
    """Every study of a history with its trials, the oldest first.

    Raises:
        InputError: There is no history there.
        HostError: It cannot be read.
    """
    with open_history(storage) as store:
        return [StudyHistory(study, present_trials(store, study.name)) for study in store.studies()]
