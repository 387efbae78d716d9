"""Use case `confirm`: a study's winner against its baseline, on traffic that the search has not seen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from optimizer.app.gpus import study_gpus
from optimizer.app.history import choose_study, open_history
from optimizer.app.request import settings_of
from optimizer.app.run_study import attempt_runners, check_identity, engine_of
from optimizer.app.session import RECORD_KEPT, clear_host, client_cores, interruptible
from optimizer.config import StudyConfig
from optimizer.config.recorded import recorded_config
from optimizer.core.confirmation import FEWEST_REPEATS, MOST_REPEATS, Arm
from optimizer.core.errors import InputError, NothingFeasible
from optimizer.core.recommendation import Recommendation, chosen_trial
from optimizer.core.record import StudyRecord, TrialRecord
from optimizer.core.trial import TrialRole
from optimizer.host.files import exclusive_lock, make_folder
from optimizer.objectives import resolve_limits
from optimizer.objectives.confirmation import Confirmation, judge_confirmation
from optimizer.storage import StudyStore
from optimizer.tuning.aim import StudyGoal
from optimizer.tuning.attempts import TrialAttempts
from optimizer.tuning.client_faults import tightest_limit_ms
from optimizer.tuning.confirmation import ConfirmationRunner, RepeatSettings, held_out_seed
from optimizer.tuning.gpu_pipeline import AttemptRunner
from optimizer.tuning.observer import StudyObserver
from optimizer.tuning.settings import BASELINE_NUMBER


@dataclass(frozen=True, slots=True)
class ConfirmRequest:
    """The options of `confirm`.

    Attributes:
        study: Name of the study; may be left out when there is only one.
        storage: Database URL or SQLite path.
        repeats: Runs of each setting.
        engine_python: The Python that has vLLM.
        port_range: Lowest and highest port for the engine.
    """

    study: str | None
    storage: str | None = None
    repeats: int = FEWEST_REPEATS
    engine_python: str | None = None
    port_range: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ConfirmOutcome:
    """What `confirm` came to.

    Attributes:
        study: The study.
        trials: All of its trials, those of the confirmation included.
        winner: The best trial.
        confirmation: None when the winner is the baseline itself, and nothing was run.
        storage_display: Where the record lies, password hidden.
        record_folder: Where the engine logs and request samples lie.
    """

    study: StudyRecord
    trials: list[TrialRecord]
    winner: TrialRecord
    confirmation: Confirmation | None
    storage_display: str
    record_folder: Path


def confirm(request: ConfirmRequest, observer: StudyObserver) -> ConfirmOutcome:
    """Make the runs that are missing, and judge all of them.

    Raises:
        InputError: Wrong options, there is no such study, its baseline was never measured, or it was begun under other
            conditions than those of today.
        NothingFeasible: The study has no winner.
        HostError: vLLM, database, port or the host itself is not usable.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP. The same command goes on.
    """
    if not FEWEST_REPEATS <= request.repeats <= MOST_REPEATS:
        raise InputError(
            f"--repeats {request.repeats}: not in {FEWEST_REPEATS} to {MOST_REPEATS}",
            hint=f"{FEWEST_REPEATS} runs of each setting are the fewest that bound a ratio usefully",
        )
    with open_history(request.storage) as store:
        study = choose_study(store, request.study)
        trials = store.trials(study.name)
        winner, baseline = _contestants(study, trials, store.recommendation(study.name))
        folder = store.folder(study.name)
        if winner.number != baseline.number:
            _make_runs(request, store, study, {Arm.WINNER: winner, Arm.BASELINE: baseline}, observer)
            trials = store.trials(study.name)
        confirmation = judge_confirmation(trials, winner.number, maximise=study.maximise)
        return ConfirmOutcome(study, trials, winner, confirmation, store.display_url, folder)


def _contestants(
    study: StudyRecord, trials: list[TrialRecord], recommendation: Recommendation | None
) -> tuple[TrialRecord, TrialRecord]:
    """Winner and baseline."""
    winner = chosen_trial(trials, recommendation, maximise=study.maximise)
    if winner is None:
        raise NothingFeasible(
            f"study {study.name} has no feasible trial, so there is no winner to confirm",
            hint="give more --trials to `run`, or relax a limit in a new study",
        )
    baseline = next((trial for trial in trials if trial.number == BASELINE_NUMBER), None)
    if baseline is None or baseline.value is None:
        raise InputError(
            f"study {study.name}: the baseline (trial 0) has no measurement, so there is nothing to compare "
            f"trial {winner.number} with",
            hint="give a baseline that starts (--baseline) in a new study",
        )
    return winner, baseline


def _make_runs(
    request: ConfirmRequest,
    store: StudyStore,
    study: StudyRecord,
    repeated: dict[Arm, TrialRecord],
    observer: StudyObserver,
) -> None:
    config = recorded_config(study)
    engine = engine_of(config, request.engine_python)
    host = clear_host(observer.notice)
    folder = make_folder(store.folder(study.name))
    with (
        exclusive_lock(folder / "lock", what=f"study {study.name}"),
        study_gpus(config, settings_of(config), engine, study) as gpus,
    ):
        check_identity(
            study,
            config,
            engine,
            gpus,
            where=store.display_url,
            hint="confirm it with the engine and on the machine that it was measured with; else run it anew",
        )
        for note in gpus.notes:
            observer.notice(note)
        ports = request.port_range

        async def work() -> None:
            async with attempt_runners(
                engine, config, gpus, host, guard_log=folder / "guard.log", ports=ports, notice=observer.notice
            ) as pipeline:
                runner = _runner(pipeline, config, store, study, repeated, observer)
                with client_cores(pinned=config.engine.pin_cpus):
                    await runner.run(request.repeats)

        asyncio.run(interruptible(work(), host, kept=RECORD_KEPT))


def _runner(
    pipeline: AttemptRunner,
    config: StudyConfig,
    store: StudyStore,
    study: StudyRecord,
    repeated: dict[Arm, TrialRecord],
    observer: StudyObserver,
) -> ConfirmationRunner:
    memory = settings_of(config).device_memory_bytes
    roles = {Arm.WINNER: TrialRole.SEARCH, Arm.BASELINE: TrialRole.BASELINE}
    settings = {arm: RepeatSettings(config, memory, role) for arm, role in roles.items()}
    baseline_metrics = repeated[Arm.BASELINE].metrics
    goal, trials = StudyGoal(config.objective, config.slos, config.rules), list(repeated.values())
    attempts = {
        arm: TrialAttempts(
            store,
            study.name,
            seed=held_out_seed(config.seed),
            settings=settings[arm],
            pipeline=pipeline,
            observer=observer,
            start_limit_s=config.engine.start_timeout_s,
            tightest_limit_ms=lambda: tightest_limit_ms(config.slos, baseline_metrics),
            aim=lambda role: goal.aim(role, trials),
        )
        for arm in Arm
    }
    return ConfirmationRunner(
        store,
        study,
        repeated=repeated,
        attempts=attempts,
        settings=settings,
        objective=config.objective,
        limits=resolve_limits(config.slos, baseline_metrics),
        rules=config.rules,
        observer=observer,
    )
