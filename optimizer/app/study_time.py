"""How long a study will take, with what its earlier trials tell."""

from __future__ import annotations

from optimizer.app.history import open_history
from optimizer.config import StudyConfig
from optimizer.config.study_time import StudyTime, estimate_study_time
from optimizer.core.confirmation import study_trials
from optimizer.storage import has_history


def study_time(config: StudyConfig, storage: str | None) -> StudyTime:
    """Estimates the rest of a study; nothing is created where there is no history yet.

    Args:
        config: The study.
        storage: What `--storage` was given; None for the default database.

    Raises:
        InputError: The text names no database.
        HostError: The history cannot be read.
    """
    if not has_history(storage):
        return estimate_study_time(config)
    with open_history(storage) as store:
        return estimate_study_time(config, study_trials(store.trials(config.study)))
