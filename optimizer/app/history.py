"""Opens an existing history and finds the study that a command means."""

from __future__ import annotations

from dataclasses import dataclass, replace

from optimizer.core.errors import InputError
from optimizer.core.recommendation import Recommendation
from optimizer.core.record import StudyRecord, TrialRecord
from optimizer.core.trial import TrialState
from optimizer.host.processes import is_alive, own_identity
from optimizer.report.secrets import hide_secrets
from optimizer.storage import StudyStore, open_store


@dataclass(frozen=True, slots=True)
class StudyHistory:
    """A study, every trial of it by number, and what it recommends."""

    study: StudyRecord
    trials: list[TrialRecord]
    recommendation: Recommendation | None = None


def open_history(storage: str | None) -> StudyStore:
    """A history that exists; reading never makes one.

    Args:
        storage: What `--storage` was given; None for the default database.

    Raises:
        InputError: There is none there.
        HostError: It cannot be read.
    """
    return open_store(storage, must_exist=True)


def choose_study(store: StudyStore, name: str | None) -> StudyRecord:
    """The study of that name, or the only one when no name was given.

    Raises:
        InputError: No study has the name, there are several to choose from, or none at all.
    """
    studies = store.studies()
    names = ", ".join(study.name for study in studies)
    if not studies:
        raise InputError(f"there is no study in {store.display_url}", hint="start one with `run --space tiny-cpu`")
    if name is None and len(studies) > 1:
        raise InputError(f"{store.display_url} holds {len(studies)} studies", hint=f"choose with --study: {names}")
    chosen = studies[0] if name is None else next((study for study in studies if study.name == name), None)
    if chosen is None:
        raise InputError(
            f"--study {hide_secrets(str(name))}: there is no such study in {store.display_url}",
            hint=f"it holds: {names}",
        )
    return chosen


def read_study(storage: str | None, name: str | None) -> StudyHistory:
    """A study with its trials.

    Raises:
        InputError: See `choose_study`.
        HostError: The history cannot be read.
    """
    with open_history(storage) as store:
        study = choose_study(store, name)
        return StudyHistory(study, present_trials(store, study.name), store.recommendation(study.name))


def present_trials(store: StudyStore, study: str) -> list[TrialRecord]:
    """The trials of a study by number, as they stand at this moment.

    A trial whose optimizer was killed is recorded as running until the next run adopts it; here it is interrupted.
    """
    return [_as_it_stands(trial) for trial in store.trials(study)]


def _as_it_stands(trial: TrialRecord) -> TrialRecord:
    owner = trial.attempts[-1].owner if trial.attempts else None
    if trial.state is not TrialState.RUNNING or owner is None:
        return trial
    # Of a process on another host nothing is known from here.
    gone = owner.host == own_identity().host and not is_alive(owner)
    return replace(trial, state=TrialState.INTERRUPTED) if gone else trial
