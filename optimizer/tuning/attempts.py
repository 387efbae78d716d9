"""One trial to its end: as many attempts as its failures allow, each recorded as it goes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from optimizer.core.engine_config import EngineConfig
from optimizer.core.failure import Blame, Failure
from optimizer.core.record import AttemptRecord, ParamValue, StageTiming, TrialRecord
from optimizer.core.trial import TrialRole, TrialState
from optimizer.host.files import make_folder
from optimizer.host.processes import own_identity
from optimizer.load import LoadProgress
from optimizer.storage import StudyStore, attempt_folder
from optimizer.tuning.observer import StudyObserver
from optimizer.tuning.settings import ResolvedConfig, Settings
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.trial_pipeline import AttemptOutcome, TrialJob, TrialPipeline

MAX_ATTEMPTS = 3
"""Attempts at one trial in one run; three faults of the host in a row mean that the host is not usable."""
_MAX_CONFIG_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Trouble:
    """A trial that could not be brought to a verdict, and is left for another run: the host is to blame.

    Attributes:
        failure: The last attempt's.
        attempts: How many this run made.
    """

    failure: Failure
    attempts: int


class TrialAttempts:
    """Runs the attempts of trials and keeps their record.

    Args:
        store: The record.
        study: Name of the study.
        seed: The study's.
        settings: Turns parameters into what is launched.
        pipeline: Makes an attempt.
        observer: Is told.
        start_limit_s: How long an engine may take to be ready.
    """

    def __init__(
        self,
        store: StudyStore,
        study: str,
        *,
        seed: int,
        settings: Settings,
        pipeline: TrialPipeline,
        observer: StudyObserver,
        start_limit_s: float,
    ) -> None:
        self._store = store
        self._study = study
        self._seed = seed
        self._settings = settings
        self._pipeline = pipeline
        self._observer = observer
        self._start_limit_s = start_limit_s

    async def run(self, trial: TrialRecord) -> tuple[TrialRecord, AttemptOutcome] | Trouble:
        """Attempt the trial until it is measured or its failure is final.

        Args:
            trial: RUNNING and recorded.

        Returns:
            The record as it stands (still RUNNING; the caller scores it) with the last attempt's outcome, or Trouble
            when faults of the host used up the attempts.
        """
        tried = 0
        while True:
            tried += 1
            resolved = self._settings.resolve(trial.role, trial.params)
            trial = replace(trial, config=resolved.config)
            self._store.put_trial(trial)
            outcome = await self._attempt(trial, resolved)
            if outcome.failure is None:
                return trial, outcome
            again = _worth_another(outcome.failure, tried)
            self._observer.attempt_failed(trial.number, outcome.failure, will_retry=again)
            if not again:
                if outcome.failure.blame is Blame.HOST:
                    return Trouble(outcome.failure, tried)
                return trial, outcome

    async def _attempt(self, trial: TrialRecord, resolved: ResolvedConfig) -> AttemptOutcome:
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
            start_limit_s=self._start_limit_s,
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
        attempt.update(ended_at=datetime.now(UTC), failure=outcome.failure)
        return outcome

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


def _worth_another(failure: Failure, tried: int) -> bool:
    limit = MAX_ATTEMPTS if failure.blame is Blame.HOST else _MAX_CONFIG_ATTEMPTS
    return failure.retryable and tried < limit
