"""Use case `run`: put a study together from its configuration and run it, new or resumed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from optimizer.app.energy import check_energy
from optimizer.app.engine_choice import SOMEBODY_ELSES, EngineChoice, choose_engine
from optimizer.app.evaluator import evaluator_runner
from optimizer.app.facts import describe_host, software_versions
from optimizer.app.flags import checked_config
from optimizer.app.gpus import StudyGpus, study_gpus
from optimizer.app.knowledge import study_knowledge
from optimizer.app.memory import study_memory
from optimizer.app.plan import capacity_note, estimate_trial_s, evaluator_note, memory_note
from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.app.search import check_rules, make_adviser, make_search
from optimizer.app.session import RECORD_KEPT, HostState, clear_host, client_cores, interruptible, launched_engines
from optimizer.config import StudyConfig, identity_difference
from optimizer.core.engine_config import JsonValue
from optimizer.core.errors import InputError
from optimizer.core.recommendation import Recommendation
from optimizer.core.record import StudyRecord, TrialRecord
from optimizer.core.samplers import SAMPLERS
from optimizer.core.study_end import StudyEnd
from optimizer.engine.launch import EngineLauncher
from optimizer.host.files import exclusive_lock, make_folder
from optimizer.load.tokenizer import load_tokenizer
from optimizer.storage import StudyStore, open_store
from optimizer.tuning.aim import StudyGoal
from optimizer.tuning.attempts import TrialAttempts
from optimizer.tuning.client_faults import tightest_limit_ms
from optimizer.tuning.evaluator_protocol import EVALUATOR_PROTOCOL
from optimizer.tuning.gpu_pipeline import AttemptRunner, GpuPipeline
from optimizer.tuning.observer import StudyObserver
from optimizer.tuning.settings import BASELINE_NUMBER
from optimizer.tuning.study_runner import Budget, StudyRunner
from optimizer.tuning.trial_pipeline import TrialPipeline

MEASUREMENT_PROTOCOL = 4
"""Raised whenever a change of ours shifts results: unlike measurements are never mixed in one study.

2: on the CPU, an engine forked from a warm spare has the KV pool of one that was started cold; it had a larger one.
3: the window opens when throughput is level and stays open until a sequential test has decided each limit.
4: arrivals that outrun an engine end the load although requests in flight are capped, and requests that are under way
where a load is ended at once are no errors.
"""


@dataclass(frozen=True, slots=True)
class StudyOutcome:
    """How a run of a study ended in good order."""

    study: StudyRecord
    trials: list[TrialRecord]
    ended: StudyEnd
    total_trials: int
    storage_display: str
    record_folder: Path
    recommendation: Recommendation | None = None


def run_study(request: RunRequest, observer: StudyObserver) -> StudyOutcome:
    """Run a study, or go on with it.

    Raises:
        InputError: Wrong options, another identity than the recorded study's, or flags that the engine does not have
            or refuses.
        HostError: vLLM, database, port or the host itself is not usable.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; the message says whether any engine is left. The same command goes on.
    """
    config = study_config(request)
    settings = settings_of(config)
    check_rules(config, settings)
    check_energy(config)
    engine = engine_of(config, request.engine_python)
    config = checked_config(request, engine, notice=observer.notice)
    settings = settings_of(config)
    host = clear_host(observer.notice)
    with open_store(request.storage) as store:
        folder = make_folder(store.folder(config.study))
        with (
            exclusive_lock(folder / "lock", what=f"study {config.study}"),
            study_gpus(config, settings, engine, store.study(config.study)) as gpus,
        ):
            study = _open_study(store, config, engine, gpus)
            if not store.trials(config.study):
                for note in (*_plan_notes(config), *_baseline_note(config)):
                    observer.notice(note)
            for note in (*gpus.notes, f"sampler {config.sampler}: {SAMPLERS[config.sampler]}"):
                observer.notice(note)
            work = _work(request, config, engine, gpus, host, store, study, observer, folder)
            ended = asyncio.run(interruptible(work, host, kept=RECORD_KEPT))
        trials, recommendation = store.trials(config.study), store.recommendation(config.study)
        return StudyOutcome(study, trials, ended, config.trials, store.display_url, folder, recommendation)


def engine_of(config: StudyConfig, engine_python: str | None) -> EngineChoice:
    """The engine of a study.

    Raises:
        InputError: It is somebody else's, and the study has no evaluator.
        HostError: vLLM is not installed where it is looked for.
    """
    return choose_engine(config.engine.kind, engine_python) if config.evaluator is None else SOMEBODY_ELSES


def _plan_notes(config: StudyConfig) -> tuple[str, ...]:
    return (*config.notes, *memory_note(config), *evaluator_note(config), *capacity_note(config))


def _baseline_note(config: StudyConfig) -> tuple[str, ...]:
    outside = settings_of(config).baseline_outside()
    if not outside:
        return ()
    return (f"the baseline sets {', '.join(outside)} outside the space: it is measured as it is",)


def _open_study(store: StudyStore, config: StudyConfig, engine: EngineChoice, gpus: StudyGpus) -> StudyRecord:
    """The recorded study, or a new record; a study of that name with another identity is refused."""
    known = store.study(config.study)
    if known is not None:
        check_identity(
            known,
            config,
            engine,
            gpus,
            where=store.display_url,
            hint="run it as it was begun, or give the changed one another name with --study",
        )
        return known
    study = StudyRecord(
        name=config.study,
        created_at=datetime.now(UTC),
        identity=study_identity(config, engine, gpus),
        config=config.as_dict(),
        objective=config.objective.metric,
        maximise=config.objective.maximise,
        versions=software_versions(engine.vllm),
        host={**describe_host(), **gpus.facts},
    )
    store.create_study(study)
    return study


def study_identity(config: StudyConfig, engine: EngineChoice, gpus: StudyGpus) -> dict[str, JsonValue]:
    """What all measurements of one study share."""
    return {
        **config.identity(),
        "engine_version": engine.version,
        "measurement_protocol": MEASUREMENT_PROTOCOL if config.evaluator is None else EVALUATOR_PROTOCOL,
        **gpus.identity,
    }


def check_identity(
    known: StudyRecord, config: StudyConfig, engine: EngineChoice, gpus: StudyGpus, *, where: str, hint: str
) -> None:
    """Refuse to add measurements to a study that was begun under other conditions.

    Args:
        known: The study as it is recorded.
        config: What is to be measured now.
        engine: By which engine.
        gpus: On which cards.
        where: The database, for the message.
        hint: What to do.

    Raises:
        InputError: Something differs; every difference is named.
    """
    changes = identity_difference(known.identity, study_identity(config, engine, gpus))
    if changes:
        raise InputError(
            f"study {known.name} in {where} was begun with another configuration:\n  " + "\n  ".join(changes),
            hint=hint,
        )


async def _work(
    request: RunRequest,
    config: StudyConfig,
    engine: EngineChoice,
    gpus: StudyGpus,
    host: HostState,
    store: StudyStore,
    study: StudyRecord,
    observer: StudyObserver,
    folder: Path,
) -> StudyEnd:
    settings, goal = settings_of(config), StudyGoal(config.objective, config.slos, config.rules)
    budget = Budget(config.trials, request.time_budget_s, estimate_trial_s(config), config.least_gain)
    async with attempt_runners(
        engine, config, gpus, host, guard_log=folder / "guard.log", ports=request.port_range, notice=observer.notice
    ) as pipeline:
        attempts = TrialAttempts(
            store,
            study.name,
            seed=config.seed,
            settings=settings,
            pipeline=pipeline,
            observer=observer,
            start_limit_s=config.engine.start_timeout_s,
            tightest_limit_ms=lambda: tightest_limit_ms(config.slos, _baseline_metrics(store, study.name)),
            aim=lambda role: goal.aim(role, store.trials(study.name)),
        )
        memory = study_memory(config, settings, lambda: store.trials(study.name))
        for note in memory.notes:
            observer.notice(note)
        knowledge = study_knowledge(config, settings, memory.prescreen)
        with (
            make_search(config, settings, store, memory.prescreen, knowledge) as search,
            client_cores(pinned=config.engine.pin_cpus),
        ):
            runner = StudyRunner(
                store,
                study,
                search=search,
                settings=settings,
                attempts=attempts,
                objective=config.objective,
                slos=config.slos,
                observer=observer,
                prescreen=memory.prescreen,
                rules=config.rules,
                advise=make_adviser(config, knowledge),
            )
            return await runner.run(budget)


def _baseline_metrics(store: StudyStore, study: str) -> Mapping[str, float | None]:
    baseline = store.trial(study, BASELINE_NUMBER)
    return {} if baseline is None else baseline.metrics


@contextlib.asynccontextmanager
async def attempt_runners(
    engine: EngineChoice,
    config: StudyConfig,
    gpus: StudyGpus,
    host: HostState,
    *,
    guard_log: Path,
    ports: tuple[int, int] | None,
    notice: Callable[[str], None],
) -> AsyncIterator[AttemptRunner]:
    """What makes the attempts of a study while the block runs: on engines of our own, or by the external evaluator.

    Raises:
        HostError: The guard does not come up.
    """
    if config.evaluator is not None:
        async with evaluator_runner(config.evaluator, config, host, guard_log=guard_log, notice=notice) as runner:
            yield runner
        return
    async with launched_engines(
        engine, config, gpus, host, guard_log=guard_log, ports=ports, notice=notice
    ) as launcher:
        yield attempt_runner(launcher, config, gpus)


def attempt_runner(launcher: EngineLauncher, config: StudyConfig, gpus: StudyGpus) -> AttemptRunner:
    """The way of an attempt, on leased cards where the study has some."""
    pipeline = TrialPipeline(
        launcher,
        config.workload,
        survivors_fail_once=gpus.hold is not None,
        hang_s=config.engine.hang_after_s,
        tokenizer=load_tokenizer(config.model.target) if config.workload.needs_tokenizer else None,
    )
    return pipeline if gpus.hold is None else GpuPipeline(pipeline, gpus.hold, gauges=gpus.gauges)
