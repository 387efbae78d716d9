"""Optuna's storage as optuna-dashboard should see it: read-only, with what the history knows filled in on reading.

optuna-dashboard 0.21 reads constraints in the form that Optuna 5 no longer writes, and takes an infeasible trial for
the best. Nothing here changes a table: the database itself refuses writes on these connections.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import event, select

from optimizer.storage.artifacts import AttemptFiles
from optimizer.storage.dashboard_records import ShownRecords, shown_constraints, with_notes
from optimizer.storage.optuna_storage import optuna_errors, optuna_storage, storage_arguments
from optimizer.storage.store import StudyStore

_CONSTRAINTS = "constraints"


class DashboardStorage(RDBStorage):
    """Optuna's trials with notes, artifacts, constraints and the best trial from the history.

    A trial has the same number in both. Optuna's trials that the history does not know are shown as they are, but for
    the form of their constraints.

    Args:
        store: The history; Optuna's tables are created where its database has none.
        records: The same history as it is to be shown.

    Raises:
        HostError: The database cannot be used.
    """

    def __init__(self, store: StudyStore, records: ShownRecords) -> None:
        optuna_storage(store).engine.dispose()
        with optuna_errors(store):
            super().__init__(**storage_arguments(store), skip_table_creation=True)
        event.listen(self.engine, "connect", _refuse_writes)
        self.engine.dispose()  # connections made so far did not hear the event
        self.files = AttemptFiles(store.base_folder)
        self._records = records

    def _build_frozen_trial_from_trial_model(self, trial: models.TrialModel) -> FrozenTrial:
        frozen = super()._build_frozen_trial_from_trial_model(trial)
        shown = self._records.study(trial.study.study_name)
        record = None if shown is None else shown.trials.get(frozen.number)
        constraints = shown_constraints(frozen.constraints, record)
        attributes = {name: value for name, value in frozen.system_attrs.items() if not _is_constraint(name)}
        if constraints:
            attributes[_CONSTRAINTS] = constraints
        if record is not None:
            attributes |= self.files.attributes(record)
        frozen.system_attrs = attributes
        return frozen

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        """The trial's system attributes as they are shown; artifacts are among them."""
        return dict(self.get_trial(trial_id).system_attrs)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """The study's system attributes as they are shown; all notes are among them."""
        name = self.get_study_name_from_id(study_id)
        return self._shown_attributes(study_id, name, super().get_study_system_attrs(study_id))

    def get_all_studies(self) -> list[FrozenStudy]:
        """All studies, with system attributes as they are shown."""
        studies = super().get_all_studies()
        for study in studies:
            study.system_attrs = self._shown_attributes(study._study_id, study.study_name, study.system_attrs)
        return studies

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        """The best trial of the record; of an unrecorded study, the best that violates no constraint.

        Where no trial is feasible it is Optuna's best all the same, since the dashboard cannot do without one here;
        its page strikes that one out (see `dashboard`).

        Raises:
            ValueError: No trial is complete.
            RuntimeError: The study has several objectives.
        """
        fallback = super().get_best_trial(study_id)
        complete = self.get_all_trials(study_id, deepcopy=False, states=(TrialState.COMPLETE,))
        shown = self._records.study(self.get_study_name_from_id(study_id))
        if shown is not None:
            return next((trial for trial in complete if trial.number == shown.best), fallback)
        feasible = [trial for trial in complete if is_feasible(trial.constraints.values())]
        if not feasible:
            return fallback
        sign = 1.0 if self.get_study_directions(study_id) == [StudyDirection.MAXIMIZE] else -1.0
        return max(feasible, key=lambda trial: sign * trial.values[0])

    def _shown_attributes(self, study_id: int, name: str, attributes: dict[str, Any]) -> dict[str, Any]:
        shown = self._records.study(name)
        return attributes if shown is None else with_notes(attributes, shown, self._numbers(study_id))

    def _numbers(self, study_id: int) -> dict[int, int]:
        """Optuna's id and number of each trial of a study, without the rest of it."""
        chosen = select(models.TrialModel.trial_id, models.TrialModel.number)
        with self.engine.connect() as connection:
            found = connection.execute(chosen.where(models.TrialModel.study_id == study_id)).all()
        return {trial_id: number for trial_id, number in found}


def is_feasible(constraints: Iterable[float]) -> bool:
    """Whether no constraint is violated."""
    return all(value <= 0.0 for value in constraints)


def _is_constraint(attribute: str) -> bool:
    return attribute == _CONSTRAINTS or attribute.startswith(f"{_CONSTRAINTS}:")


def _refuse_writes(connection: Any, _record: object) -> None:
    """Let the database refuse every write on a new connection (psycopg's or sqlite3's)."""
    if type(connection).__module__.startswith("sqlite3"):
        connection.execute("PRAGMA query_only=ON")
        return
    connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
    connection.commit()
