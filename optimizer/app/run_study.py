"""Use case `run`: put a study together from its configuration and run it, new or resumed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optimizer.app.engines import EngineChoice, choose_engine, start_launcher
from optimizer.app.facts import describe_host, software_versions
from optimizer.app.plan import estimate_trial_s, memory_note
from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.app.search import check_rules, make_search
from optimizer.config import StudyConfig, identity_difference
from optimizer.core.engine_config import JsonValue
from optimizer.core.errors import InputError, Interrupted
from optimizer.core.record import StudyRecord, TrialRecord
from optimizer.host.cpus import pin_this_process, split_cpus
from optimizer.host.files import exclusive_lock, make_folder
from optimizer.storage import StudyStore, open_store
from optimizer.tuning.attempts import TrialAttempts
from optimizer.tuning.observer import StudyObserver
from optimizer.tuning.study_runner import Budget, Ended, StudyRunner
from optimizer.tuning.trial_pipeline import TrialPipeline

MEASUREMENT_PROTOCOL = 1
"""Raised whenever a change of ours shifts results: unlike measurements are never mixed in one study."""


@dataclass(frozen=True, slots=True)
class StudyOutcome:
    """How a run of a study ended in good order."""

    study: StudyRecord
    trials: list[TrialRecord]
    ended: Ended
    total_trials: int
    storage_display: str
    record_folder: Path


def run_study(request: RunRequest, observer: StudyObserver) -> StudyOutcome:
    """Run a study, or go on with it.

    Raises:
        InputError: Wrong options, another identity than the recorded study's, or flags that the engine refuses.
        HostError: vLLM, database, port or the host itself is not usable.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; no engine is left, and the same command goes on.
    """
    config = study_config(request)
    check_rules(config, settings_of(config))
    engine = choose_engine(config.engine.kind, request.engine_python)
    with open_store(request.storage) as store:
        folder = make_folder(store.folder(config.study))
        with exclusive_lock(folder / "lock", what=f"study {config.study}"):
            study = _open_study(store, config, engine)
            if not store.trials(config.study):
                for note in (*config.notes, *memory_note(config), *_baseline_note(config)):
                    observer.notice(note)
            ended = asyncio.run(_interruptible(_work(request, config, engine, store, study, observer, folder)))
        return StudyOutcome(study, store.trials(config.study), ended, config.trials, store.display_url, folder)


def _baseline_note(config: StudyConfig) -> tuple[str, ...]:
    outside = settings_of(config).baseline_outside()
    if not outside:
        return ()
    return (f"the baseline sets {', '.join(outside)} outside the space: it is measured as it is",)


def _open_study(store: StudyStore, config: StudyConfig, engine: EngineChoice) -> StudyRecord:
    """The recorded study, or a new record; a study of that name with another identity is refused."""
    identity: dict[str, JsonValue] = {
        **config.identity(),
        "engine_version": engine.version,
        "measurement_protocol": MEASUREMENT_PROTOCOL,
    }
    known = store.study(config.study)
    if known is not None:
        changes = identity_difference(known.identity, identity)
        if changes:
            raise InputError(
                f"study {config.study} in {store.display_url} was begun with another configuration:\n  "
                + "\n  ".join(changes),
                hint="run it as it was begun, or give the changed one another name with --study",
            )
        return known
    study = StudyRecord(
        name=config.study,
        created_at=datetime.now(UTC),
        identity=identity,
        config=config.as_dict(),
        objective=config.objective.metric,
        maximise=config.objective.maximise,
        versions=software_versions(engine.vllm),
        host=describe_host(),
    )
    store.create_study(study)
    return study


async def _work(
    request: RunRequest,
    config: StudyConfig,
    engine: EngineChoice,
    store: StudyStore,
    study: StudyRecord,
    observer: StudyObserver,
    folder: Path,
) -> Ended:
    settings = settings_of(config)
    budget = Budget(config.trials, request.time_budget_s, estimate_trial_s(config))
    guard_log, split, ports = folder / "guard.log", split_cpus(), request.port_range
    launcher = await start_launcher(
        engine, config.engine, model=config.model.target, guard_log=guard_log, split=split, port_range=ports
    )
    try:
        attempts = TrialAttempts(
            store,
            study.name,
            seed=config.seed,
            settings=settings,
            pipeline=TrialPipeline(launcher, config.workload),
            observer=observer,
            start_limit_s=config.engine.start_timeout_s,
        )
        with make_search(config, settings, store) as search, _client_cores(pinned=config.engine.pin_cpus):
            runner = StudyRunner(
                store,
                study,
                search=search,
                settings=settings,
                attempts=attempts,
                objective=config.objective,
                slos=config.slos,
                observer=observer,
            )
            return await runner.run(budget)
    finally:
        await launcher.close()


async def _interruptible(work: Coroutine[Any, Any, Ended]) -> Ended:
    """Run the study; the first signal to stop cancels it, and further ones do not cut its tidying up short.

    Raises:
        Interrupted: A signal came.
    """
    task = asyncio.create_task(work, name="study")
    stopped_by: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not stopped_by:
            stopped_by.append(number)
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not stopped_by:
            raise
        raise Interrupted(f"stopped by {stopped_by[0].name}; the record is complete and no engine is left") from None


@contextlib.contextmanager
def _client_cores(*, pinned: bool) -> Iterator[None]:
    """Keep this process, which holds the load client, off the engine's cores for a while."""
    if not pinned:
        yield
        return
    split = split_cpus()
    pin_this_process(split.client)
    try:
        yield
    finally:
        pin_this_process(tuple(sorted({*split.engine, *split.client})))
