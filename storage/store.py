"""The history of studies: every step is written in one transaction, committed before the call returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import URL, Connection, Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from optimizer.core.errors import AutotuneError, InputError
from optimizer.core.recommendation import Recommendation
from optimizer.core.record import AttemptRecord, ProcessIdentity, StudyRecord, TrialRecord
from optimizer.core.trial import TRANSITIONS, TrialState
from optimizer.host.files import make_folder
from optimizer.storage import rows
from optimizer.storage.database import DEFAULT_FOLDER, database_errors, open_engine, parse_url, writing
from optimizer.storage.folders import check_study_name
from optimizer.storage.schema import migrate, revision_of
from optimizer.storage.tables import attempts, recommendations, studies, trials


def open_store(url: str | None, *, must_exist: bool = False) -> StudyStore:
    """Open the history, and create it where there is none.

    Args:
        url: A database URL, a path that ends in .db or .sqlite, or None for `autotune/studies.db` below the current
            directory.
        must_exist: Refuse to create anything.

    Raises:
        InputError: The URL is wrong, its driver is missing, or there is no history and `must_exist` is set.
        HostError: The database cannot be reached or written, is damaged, or was made by a newer version.
    """
    target = parse_url(url)
    file = Path(target.database or "") if target.get_backend_name() == "sqlite" else None
    if file is not None:
        if must_exist and not file.is_file():
            raise _no_history(target)
        make_folder(file.parent)
    engine = open_engine(target)
    try:
        with database_errors(target):
            if must_exist and not _holds_history(engine):
                raise _no_history(target)
            migrate(writing(engine))
    except AutotuneError:
        engine.dispose()
        raise
    return StudyStore(engine, base_folder=Path.cwd() / DEFAULT_FOLDER if file is None else file.parent)


def has_history(url: str | None) -> bool:
    """Whether there is a history to open; nothing is created.

    Args:
        url: As for `open_store`.

    Raises:
        InputError: The URL is wrong.
        HostError: The database cannot be reached or read.
    """
    target = parse_url(url)
    if target.get_backend_name() == "sqlite" and not Path(target.database or "").is_file():
        return False
    engine = open_engine(target)
    try:
        with database_errors(target):
            return _holds_history(engine)
    finally:
        engine.dispose()


def _holds_history(engine: Engine) -> bool:
    with engine.connect() as connection:
        return revision_of(connection) is not None


def _no_history(url: URL) -> InputError:
    where = url.database if url.get_backend_name() == "sqlite" else url.render_as_string()
    return InputError(f"no study history at {where}", hint="run a study first, or name its database with --storage")


class StudyStore:
    """Studies, trials and attempts in one database. `open_store` makes it.

    Calls may come from several threads and processes; each is one transaction. All of them raise `HostError` when the
    database cannot be reached, read or written.

    Args:
        engine: Connections to a database that holds the present schema.
        base_folder: Where the folders of the studies lie.
    """

    def __init__(self, engine: Engine, base_folder: Path) -> None:
        self._engine = engine
        self._writer = writing(engine)
        self.base_folder = base_folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @property
    def url(self) -> URL:
        """Where the database is. Its `str` hides the password."""
        return self._engine.url

    @property
    def display_url(self) -> str:
        """The URL with the password hidden."""
        return self.url.render_as_string()

    @property
    def optuna_url(self) -> str:
        """The URL with the password, for Optuna alone: never print it."""
        return self.url.render_as_string(hide_password=False)

    def folder(self, study: str) -> Path:
        """Where the folders of a study's trials lie.

        That is beside an SQLite file, else in `autotune` below the directory that was current on opening. It is not
        created here; `attempt_folder(store.base_folder, ...)` names the folders in it.
        """
        return self.base_folder / check_study_name(study)

    def create_study(self, study: StudyRecord) -> None:
        """Record a new study.

        Raises:
            InputError: One of that name exists, or the name cannot be a folder's name.
        """
        check_study_name(study.name)
        with self._write() as connection:
            if self._study_row(connection, study.name) is not None:
                raise InputError(f"study {study.name} exists already in {self.display_url}", hint="take another name")
            connection.execute(insert(studies).values(rows.study_row(study)))

    def study(self, name: str) -> StudyRecord | None:
        """The study of that name, or None."""
        with self._read() as connection:
            row = self._study_row(connection, name)
        return None if row is None else rows.study_record(row)

    def studies(self) -> list[StudyRecord]:
        """All studies, the oldest first."""
        with self._read() as connection:
            found = connection.execute(select(studies).order_by(studies.c.id)).mappings().all()
        return [rows.study_record(row) for row in found]

    def trials(self, study: str) -> list[TrialRecord]:
        """The study's trials by number, with their attempts; none when there is no such study."""
        with self._read() as connection:
            return _read_trials(connection, study)

    def trial(self, study: str, number: int) -> TrialRecord | None:
        """One trial with its attempts, or None."""
        with self._read() as connection:
            found = _read_trials(connection, study, number)
        return found[0] if found else None

    def put_trial(self, trial: TrialRecord) -> None:
        """Record a trial: a new one in any state, a known one with all columns of its own replaced.

        Its attempts are not written here. To put a final record once more, unchanged, does nothing.

        Raises:
            AutotuneError: There is no such study, or the trial cannot go from its recorded state to the new one.
        """
        row = rows.trial_row(trial)
        with self._write() as connection:
            known = self._known_trial(connection, trial.study, trial.number)
            if known is None:
                study_id = self._study_id(connection, trial.study)
                connection.execute(insert(trials).values(study_id=study_id, **row))
                return
            if all(known[column] == value for column, value in row.items()):
                return
            _check_transition(trial, TrialState(known["state"]))
            connection.execute(update(trials).where(trials.c.id == known["id"]).values(**row))

    def put_recommendation(self, study: str, recommendation: Recommendation | None) -> None:
        """Record what a study recommends now, in place of what it did; None takes that back."""
        with self._write() as connection:
            study_id = self._study_id(connection, study)
            connection.execute(delete(recommendations).where(recommendations.c.study_id == study_id))
            if recommendation is not None:
                row = rows.recommendation_row(recommendation)
                connection.execute(insert(recommendations).values(study_id=study_id, **row))

    def recommendation(self, study: str) -> Recommendation | None:
        """What a study recommends; None when it recommends nothing, or there is no such study."""
        chosen = select(recommendations).join(studies, recommendations.c.study_id == studies.c.id)
        with self._read() as connection:
            row = connection.execute(chosen.where(studies.c.name == study)).mappings().one_or_none()
        return None if row is None else rows.recommendation_record(study, row)

    def begin_attempt(self, study: str, number: int, attempt: AttemptRecord) -> None:
        """Record a new attempt at a trial; an interrupted trial is running again from here.

        Raises:
            AutotuneError: The trial is unknown or final, or has an attempt of that number.
        """
        with self._write() as connection:
            known = self._trial_or_raise(connection, study, number)
            state = TrialState(known["state"])
            if state.is_final:
                raise AutotuneError(f"trial {number} of study {study} is {state.value}: it takes no further attempt")
            row = rows.attempt_row(attempt)
            connection.execute(insert(attempts).values(trial_id=known["id"], **row))
            connection.execute(update(trials).where(trials.c.id == known["id"]).values(state=TrialState.RUNNING.value))

    def put_attempt(self, study: str, number: int, attempt: AttemptRecord) -> None:
        """Replace what is recorded of an attempt.

        Raises:
            AutotuneError: There is no such attempt.
        """
        with self._write() as connection:
            known = self._trial_or_raise(connection, study, number)
            done = connection.execute(
                update(attempts)
                .where(attempts.c.trial_id == known["id"], attempts.c.number == attempt.number)
                .values(**rows.attempt_row(attempt))
            )
            if done.rowcount != 1:
                raise AutotuneError(f"trial {number} of study {study} has no attempt {attempt.number}")

    def mark_interrupted(self, study: str, is_alive: Callable[[ProcessIdentity], bool]) -> list[TrialRecord]:
        """Mark the running trials whose owner is gone as interrupted, and give these back by number.

        A running trial without any attempt is one of them: its owner died between two writes. Should it live after
        all, its `begin_attempt` sets the trial running again.

        Args:
            study: The study's name.
            is_alive: Tells whether the owner of a trial's latest attempt lives. It is called inside the transaction.
        """
        with self._write() as connection:
            running = (trials.c.study_id == self._study_id(connection, study)) & (
                trials.c.state == TrialState.RUNNING.value
            )
            # Locked before they are read, so that no owner begins an attempt between the question and the answer.
            connection.execute(select(trials.c.id).where(running).with_for_update())
            gone = [
                trial.number
                for trial in _read_trials(connection, study)
                if trial.state is TrialState.RUNNING and not (trial.attempts and is_alive(trial.attempts[-1].owner))
            ]
            if gone:
                connection.execute(
                    update(trials).where(running, trials.c.number.in_(gone)).values(state=TrialState.INTERRUPTED.value)
                )
            return [trial for trial in _read_trials(connection, study) if trial.number in gone]

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with database_errors(self.url), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        try:
            with database_errors(self.url), self._writer.begin() as connection:
                yield connection
        except IntegrityError as error:
            raise AutotuneError(f"{self.display_url} refuses a record that it holds already: {error.orig}") from error

    def _study_row(self, connection: Connection, name: str) -> rows.Row | None:
        return connection.execute(select(studies).where(studies.c.name == name)).mappings().one_or_none()

    def _study_id(self, connection: Connection, name: str) -> int:
        row = self._study_row(connection, name)
        if row is None:
            raise AutotuneError(f"there is no study {name!r} in {self.display_url}")
        return int(row["id"])

    def _known_trial(self, connection: Connection, study: str, number: int) -> rows.Row | None:
        chosen = (
            select(trials)
            .join(studies, trials.c.study_id == studies.c.id)
            .where(studies.c.name == study, trials.c.number == number)
            .with_for_update(of=trials)
        )
        return connection.execute(chosen).mappings().one_or_none()

    def _trial_or_raise(self, connection: Connection, study: str, number: int) -> rows.Row:
        known = self._known_trial(connection, study, number)
        if known is None:
            raise AutotuneError(f"there is no trial {number} of study {study!r} in {self.display_url}")
        return known


def _check_transition(trial: TrialRecord, before: TrialState) -> None:
    if before.is_final:
        raise AutotuneError(f"trial {trial.number} of study {trial.study} is {before.value}: its record cannot change")
    if trial.state is not before and trial.state not in TRANSITIONS[before]:
        raise AutotuneError(
            f"trial {trial.number} of study {trial.study} cannot go from {before.value} to {trial.state.value}"
        )


def _read_trials(connection: Connection, study: str, number: int | None = None) -> list[TrialRecord]:
    """The trials of a study, or the one of that number, by number and with their attempts."""
    wanted = [studies.c.name == study] if number is None else [studies.c.name == study, trials.c.number == number]
    in_study = trials.join(studies, trials.c.study_id == studies.c.id)
    chosen_trials = select(trials).select_from(in_study).where(*wanted).order_by(trials.c.number)
    chosen_attempts = (
        select(attempts)
        .select_from(attempts.join(in_study, attempts.c.trial_id == trials.c.id))
        .where(*wanted)
        .order_by(attempts.c.number)
    )
    found = connection.execute(chosen_trials).mappings().all()
    of_trial: dict[int, list[AttemptRecord]] = {}
    for row in connection.execute(chosen_attempts).mappings():
        of_trial.setdefault(row["trial_id"], []).append(rows.attempt_record(row))
    return [rows.trial_record(study, row, tuple(of_trial.get(row["id"], ()))) for row in found]
