"""One trial to its end: as many attempts as its failures allow, each recorded as it goes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from optimizer.core.engine_config import EngineConfig
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.record import AttemptRecord, ParamValue, StageTiming, TrialRecord
from optimizer.core.trial import TrialRole, TrialState
from optimizer.host.files import make_folder
from optimizer.host.processes import own_identity
from optimizer.load.progress import LoadProgress
from optimizer.storage import StudyStore, attempt_folder
from optimizer.tuning.aim import Aim
from optimizer.tuning.client_faults import more_processes
from optimizer.tuning.gpu_pipeline import AttemptRunner
from optimizer.tuning.observer import StudyObserver
from optimizer.tuning.settings import ResolvedConfig, Settings
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.start_limit import learned_start_limit_s, starts_s
from optimizer.tuning.trial_pipeline import AttemptOutcome, TrialJob

HOST_FAULTS_IN_A_ROW = 3
"""So many attempts in a row that the host spoils mean that it is not usable; no matter of which trials they are."""
_MAX_CONFIG_ATTEMPTS = 2
"""Attempts that a setting gets which may have failed by chance; those that the host spoiled do not count."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A trial that could not be brought to a verdict, and is left for another run: the host is to blame.

    Attributes:
        failure: The last attempt's.
        in_a_row: How many attempts the host has spoiled, one after another, that one included.
    """

    failure: Failure
    in_a_row: int


@dataclass(frozen=True, slots=True)
class OutOfTime:
    """A trial whose last attempt is worth another one, for which this run has no time left."""

    failure: Failure


class TrialAttempts:
    """Runs the attempts of trials and keeps their record.

    Args:
        store: The record.
        study: Name of the study.
        seed: The study's.
        settings: Turns parameters into what is launched.
        pipeline: Makes an attempt.
        observer: Is told.
        start_limit_s: How long an engine may take to be ready; less once it is known how long the study's take.
        tightest_limit_ms: Tells the tightest limit on a latency, as far as the limits are known by now.
        aim: Tells what an attempt at a trial of some role has to find out, if it begins now; by default nothing, and
            the load goes on for as long as the window must be.
    """

    def __init__(
        self,
        store: StudyStore,
        study: str,
        *,
        seed: int,
        settings: Settings,
        pipeline: AttemptRunner,
        observer: StudyObserver,
        start_limit_s: float,
        tightest_limit_ms: Callable[[], float | None] = lambda: None,
        aim: Callable[[TrialRole], Aim | None] = lambda role: None,
    ) -> None:
        self._store = store
        self._study = study
        self._seed = seed
        self._settings = settings
        self._pipeline = pipeline
        self._observer = observer
        self._configured_limit_s = start_limit_s
        self._tightest_limit_ms = tightest_limit_ms
        self._aim = aim
        self._host_faults_in_a_row = 0
        self._processes = 1

    async def run(
        self, trial: TrialRecord, *, has_time: Callable[[], bool] = lambda: True
    ) -> tuple[TrialRecord, AttemptOutcome] | Trouble | OutOfTime:
        """Attempt the trial until it is measured or its failure is final.

        Args:
            trial: RUNNING and recorded.
            has_time: Whether another attempt can still be made; asked before each but the first.

        Returns:
            The record as it stands (still RUNNING; the caller scores it) with the last attempt's outcome. Trouble when
            the host spoiled one attempt too many, OutOfTime when there is none for the next.
        """
        own_faults = 0
        limit_s = learned_start_limit_s(self._starts_s(), self._configured_limit_s)
        while True:
            resolved = self._settings.resolve(trial.role, trial.params)
            trial = replace(trial, config=resolved.config)
            self._store.put_trial(trial)
            outcome = await self._attempt(trial, resolved, limit_s)
            if outcome.notes:
                trial = replace(trial, notes=(*trial.notes, *outcome.notes))
                self._store.put_trial(trial)
            failure = outcome.failure
            if failure is not None:
                # A host that needs them needs them for the trials that follow, too.
                self._processes = more_processes(failure, self._processes)
            by_host = failure is not None and failure.blame is Blame.HOST
            self._host_faults_in_a_row = self._host_faults_in_a_row + 1 if by_host else 0
            if failure is None:
                return trial, outcome
            own_faults += not by_host
            worth_another = failure.retryable and self._may_repeat(own_faults)
            again = worth_another and has_time()
            self._observer.attempt_failed(trial.number, failure, will_retry=again)
            if not again:
                if worth_another:
                    return OutOfTime(failure)
                return Trouble(failure, self._host_faults_in_a_row) if by_host else (trial, outcome)
            if failure.kind is FailureKind.STARTUP_TIMEOUT:
                limit_s = self._configured_limit_s

    def _may_repeat(self, own_faults: int) -> bool:
        return self._host_faults_in_a_row < HOST_FAULTS_IN_A_ROW and own_faults < _MAX_CONFIG_ATTEMPTS

    def _starts_s(self) -> list[float]:
        return starts_s(attempt for trial in self._store.trials(self._study) for attempt in trial.attempts)

    async def _attempt(self, trial: TrialRecord, resolved: ResolvedConfig, limit_s: float) -> AttemptOutcome:
        number = 1 + len(self._attempts_so_far(trial.number))
        folder = make_folder(attempt_folder(self._store.base_folder, self._study, trial.number, number))
        attempt = _AttemptKeeper(self._store, self._study, trial.number, number, folder)
        clock = StageClock(lambda stages: self._stage_changed(trial.number, attempt, stages))
        job = TrialJob(
            marker=f"{self._study}/{trial.number}/{number}",
            config=resolved.config,
            expected_memory_gib=resolved.memory_gib,
            folder=folder,
            study_seed=self._seed,
            content_seed=content_seed(self._seed, self._study, trial.number, number),
            start_limit_s=limit_s,
            processes=self._processes,
            tightest_limit_ms=self._tightest_limit_ms(),
            aim=self._aim(trial.role),
            number=trial.number,
            attempt=number,
            role=trial.role,
            params=trial.params,
        )

        def launched(argv: tuple[str, ...]) -> None:
            attempt.update(argv=argv)

        def progressed(progress: LoadProgress) -> None:
            self._observer.load_progress(
                trial.number,
                done_requests=progress.done_requests,
                elapsed_s=progress.elapsed_s,
                window_s=progress.window_s,
            )

        self._observer.trial_started(trial, attempt=number)
        try:
            outcome = await self._pipeline.run(job, clock, on_launch=launched, on_progress=progressed)
        except BaseException:
            clock.end()
            attempt.update(ended_at=datetime.now(UTC))
            raise
        outcome = self._with_a_second_chance(outcome, limit_s)
        attempt.update(ended_at=datetime.now(UTC), failure=outcome.failure)
        return replace(outcome, notes=tuple(f"attempt {number}: {note}" for note in outcome.notes))

    def _with_a_second_chance(self, outcome: AttemptOutcome, limit_s: float) -> AttemptOutcome:
        """A start that was too slow for a limit told from other starts may take the configured time."""
        failure = outcome.failure
        if failure is None or failure.kind is not FailureKind.STARTUP_TIMEOUT or limit_s >= self._configured_limit_s:
            return outcome
        return replace(outcome, failure=replace(failure, retryable=True))

    def _stage_changed(self, number: int, attempt: _AttemptKeeper, stages: tuple[StageTiming, ...]) -> None:
        attempt.update(stages=stages)
        if stages[-1].duration_s is None:
            self._observer.stage_entered(number, stages[-1].stage)

    def _attempts_so_far(self, number: int) -> tuple[AttemptRecord, ...]:
        recorded = self._store.trial(self._study, number)
        return () if recorded is None else recorded.attempts


class _AttemptKeeper:
    """Holds the record of one attempt and writes every change of it."""

    def __init__(self, store: StudyStore, study: str, trial: int, number: int, folder: Path) -> None:
        self._store = store
        self._study = study
        self._trial = trial
        self._record = AttemptRecord(number, own_identity(), datetime.now(UTC), None, str(folder))
        store.begin_attempt(study, trial, self._record)

    def update(self, **changes: object) -> None:
        """Replace fields of the record and write it."""
        self._record = replace(self._record, **changes)  # type: ignore[arg-type]
        self._store.put_attempt(self._study, self._trial, self._record)


def content_seed(seed: int, study: str, trial: int, attempt: int) -> int:
    """Another seed for each attempt of each trial, the same whenever that attempt is asked for."""
    return zlib.crc32(f"{seed}/{study}/{trial}/{attempt}".encode())


def new_trial(
    study: str, number: int, role: TrialRole, params: Mapping[str, ParamValue], config: EngineConfig | None
) -> TrialRecord:
    """A trial that is about to run."""
    return TrialRecord(study, number, role, TrialState.RUNNING, params, config)
