"""Use case `measure --space`: one configuration launched, loaded and shown in full. No study, no record."""

from __future__ import annotations

import asyncio
import functools
import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from optimizer.app.engine_choice import EngineChoice, choose_engine
from optimizer.app.figures import Question, spoiled_by_client, with_curve, with_figures
from optimizer.app.flags import checked_config
from optimizer.app.gpus import StudyGpus, study_gpus
from optimizer.app.live import LevelMeasured, LiveServer, Watchers, measure_offline, sweep_live
from optimizer.app.measure_capacity import capacity_aim, check_objective, with_capacity
from optimizer.app.plan import describe_workload
from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.app.run_study import attempt_runner
from optimizer.app.session import clear_host, client_cores, interruptible, launched_engines
from optimizer.app.traffic import AS_THE_WORKLOAD_SAYS, TrafficOptions, sweep_levels, with_traffic
from optimizer.config import StudyConfig
from optimizer.core.errors import AutotuneError, HostError, InputError, NothingFeasible
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.measurement import Measurement
from optimizer.core.trial import TrialRole
from optimizer.engine.launch import EngineLauncher, EngineProcess
from optimizer.engine.vllm.argv import serve_command
from optimizer.engine.vllm.compile_log import CompileWatch
from optimizer.host.files import make_folder
from optimizer.load.progress import LoadProgress
from optimizer.load.tokenizer import load_tokenizer
from optimizer.objectives import OBJECTIVES, Limit, Slo, resolve_limits
from optimizer.report.measure_view import MeasureView
from optimizer.report.secrets import hide_argument_secrets
from optimizer.storage import DEFAULT_FOLDER
from optimizer.tuning.aim import Aim
from optimizer.tuning.attempts import HOST_FAULTS_IN_A_ROW
from optimizer.tuning.client_faults import more_processes
from optimizer.tuning.gpu_pipeline import AttemptRunner, GpuPipeline
from optimizer.tuning.observation import whole_flag
from optimizer.tuning.settings import ResolvedConfig
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.trial_pipeline import AttemptOutcome, TrialJob
from optimizer.tuning.visit_pipeline import VisitPipeline

FOLDER = "measured"
"""Below the history's folder: one folder a measurement."""
_REFUSED = (FailureKind.REJECTED_FLAG, FailureKind.INVALID_COMBINATION)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """The options of `measure --space`.

    Attributes:
        run: Space and overrides, as `run` takes them; `baseline` is the command given. An `objective` is the capacity.
        traffic: What the command line says of rate, number and time.
        sweep: Levels, `auto`, or None for one measurement.
        offline: Whether all requests are sent at once.
    """

    run: RunRequest
    traffic: TrafficOptions = AS_THE_WORKLOAD_SAYS
    sweep: str | None = None
    offline: bool = False

    @property
    def mode(self) -> str:
        """As scripts know it."""
        if self.run.objective is not None:
            return "capacity"
        return "offline" if self.offline else "online" if self.sweep is None else "sweep"


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told: `say` what happens, `progress` how far a window is."""

    say: Say
    progress: Callable[[LoadProgress], None]


@dataclass(slots=True)
class _Work:
    """One measurement, put together.

    Attributes:
        config: The study's configuration with the traffic applied.
        question: What is asked.
        levels: Of a sweep.
        measured: The levels of a sweep so far.
    """

    request: MeasureRequest
    config: StudyConfig
    question: Question
    levels: tuple[float, ...]
    notes: list[str]
    measured: list[LevelMeasured] = field(default_factory=list)


def measure_space(request: MeasureRequest, watch: Watch) -> MeasureView:
    """Launch, load, show.

    Raises:
        InputError: Wrong options, a flag that the engine does not have or refuses.
        NothingFeasible: The setting does not serve.
        HostError: vLLM, port or the host itself is not usable.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; no engine is left.
    """
    check_modes(request.sweep, offline=request.offline, slos=request.run.slos, traffic=request.traffic)
    check_objective(request.run.objective, request.traffic, sweep=request.sweep, offline=request.offline)
    engine = choose_engine_of(request.run)
    config = checked_config(request.run, engine, notice=watch.say)
    config = replace(config, workload=with_traffic(config.workload, request.traffic))
    settings = settings_of(config)
    resolved = settings.resolve(TrialRole.BASELINE, {})
    limits, notes = _limits(config, request)
    question = Question(
        config.workload, config.seed, limits, config.rules, resolved.config.flags, offline=request.offline
    )
    levels = () if request.sweep is None else sweep_levels(request.sweep, config.workload)
    work = _Work(request, config, question, levels, [*config.notes, *notes])
    folder = make_folder(
        Path.cwd() / DEFAULT_FOLDER / FOLDER / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
    )
    host = clear_host(watch.say)
    with study_gpus(config, settings, engine, None) as gpus:
        for note in gpus.notes:
            watch.say(note)

        async def made() -> AttemptOutcome:
            async with launched_engines(
                engine,
                config,
                gpus,
                host,
                guard_log=folder / "guard.log",
                ports=request.run.port_range,
                notice=watch.say,
            ) as launcher:
                runner = _runner(launcher, work, gpus, watch)
                with client_cores(pinned=config.engine.pin_cpus):
                    return await _attempted(runner, work, resolved, folder, watch)

        outcome = asyncio.run(interruptible(made(), host))
    if outcome.measurement is None:
        raise _no_measurement(outcome.failure, folder)
    return _view(work, engine, resolved, outcome, outcome.measurement, folder)


def check_modes(sweep: str | None, *, offline: bool, slos: tuple[str, ...], traffic: TrafficOptions) -> None:
    """Refuse modes that exclude each other.

    Raises:
        InputError: Two do.
    """
    if sweep is not None and offline:
        raise InputError("--sweep and --offline exclude each other", hint="a batch has no level of load: choose one")
    if offline and slos:
        raise InputError(
            f"--slo {slos[0]}: a batch has no latency that a user would see, so no limit can be judged with --offline",
            hint="leave one of the two out",
        )
    for option, value in (("--rate", traffic.rate_per_s), ("--concurrency", traffic.concurrency)):
        if offline and value is not None:
            raise InputError(
                f"{option} {value:g}: with --offline all requests are sent at once", hint="leave one of the two out"
            )


def choose_engine_of(run: RunRequest) -> EngineChoice:
    """The engine that the space or `--engine` names."""
    return choose_engine(study_config(run).engine.kind, run.engine_python)


def _limits(config: StudyConfig, request: MeasureRequest) -> tuple[tuple[Limit, ...], list[str]]:
    """The limits that one configuration alone can be held against, and why others are left out."""
    if request.offline:
        return (), []
    relative = [slo for slo in config.slos if slo.is_relative]
    if relative and request.run.slos:
        raise InputError(
            f"--slo {relative[0]}: one configuration is measured, so there is no baseline to multiply",
            hint=f"state it in milliseconds, such as {relative[0].name}=800",
        )
    absolute: list[Slo] = [slo for slo in config.slos if not slo.is_relative]
    notes = [f"the space's limit {slo} is left out: one configuration has no baseline to multiply" for slo in relative]
    return resolve_limits(absolute, {}), notes


def _runner(launcher: EngineLauncher, work: _Work, gpus: StudyGpus, watch: Watch) -> AttemptRunner:
    """A trial's own way for one window; another one through the same engine for a sweep or a batch."""
    if work.request.sweep is None and not work.request.offline:
        return attempt_runner(launcher, work.config, gpus)

    async def visit(engine: EngineProcess, job: TrialJob, progress: Callable[[LoadProgress], None]) -> Measurement:
        config, server = work.config, _server(engine, work, job)
        told = Watchers(watch.say, progress)
        if work.request.offline:
            requests = work.request.traffic.requests or config.workload.window.min_requests
            return await measure_offline(server, config.workload, config.seed, requests, told)
        work.measured.clear()
        spoiled = functools.partial(spoiled_by_client, question=work.question)
        keep = work.measured.append
        await sweep_live(server, config.workload, work.levels, config.seed, told, keep=keep, spoiled=spoiled)
        return work.measured[-1].measurement

    pipeline = VisitPipeline(
        launcher,
        work.config.workload,
        visit,
        survivors_fail_once=gpus.hold is not None,
        hang_s=work.config.engine.hang_after_s,
    )
    return pipeline if gpus.hold is None else GpuPipeline(pipeline, gpus.hold, gauges=gpus.gauges)


def _server(engine: EngineProcess, work: _Work, job: TrialJob) -> LiveServer:
    config = work.config
    return LiveServer(
        engine.endpoint,
        tokenizer=load_tokenizer(config.model.target) if config.workload.needs_tokenizer else None,
        max_model_len=whole_flag(job.config, "max-model-len"),
        engine_pids=lambda: (engine.pid,),
        reset_cache=engine.reset_prefix_cache,
        compiled=CompileWatch(engine.log).compiled,
        processes=job.processes,
        gauges=job.gauges,
        gpus=job.gpus,
    )


async def _attempted(
    runner: AttemptRunner, work: _Work, resolved: ResolvedConfig, folder: Path, watch: Watch
) -> AttemptOutcome:
    """Attempts until one is measured; what the host spoiled is tried again, as in a study."""
    question, processes = work.question, 1
    tightest = min((limit.limit_ms for limit in question.limits), default=None)
    aim, attempt = _aim(work), 0
    while True:
        attempt += 1
        job = TrialJob(
            marker=f"{FOLDER}/{folder.name}/{attempt}",
            config=resolved.config,
            expected_memory_gib=resolved.memory_gib,
            folder=make_folder(folder / f"attempt-{attempt}"),
            study_seed=question.seed,
            content_seed=secrets.randbits(31),
            start_limit_s=work.config.engine.start_timeout_s,
            processes=processes,
            tightest_limit_ms=tightest,
            aim=aim,
        )
        clock = StageClock(lambda stages: watch.say(stages[-1].stage.value.replace("_", " ")))
        outcome = await runner.run(job, clock, on_launch=lambda argv: None, on_progress=watch.progress)
        failure = outcome.failure
        again = failure is not None and failure.retryable and failure.blame is Blame.HOST
        if failure is None or not again or attempt == HOST_FAULTS_IN_A_ROW:
            return outcome
        watch.say(f"{failure.kind}: {failure.detail}; trying it again")
        processes = more_processes(failure, processes)


def _aim(work: _Work) -> Aim | None:
    question = work.question
    if work.request.mode == "capacity":
        return capacity_aim(question)
    if not question.limits or work.request.traffic.fixes_length:
        return None
    return Aim(OBJECTIVES["throughput"], tuple(question.limits), rules=question.rules, whole=True)


def _no_measurement(failure: Failure | None, folder: Path) -> AutotuneError:
    if failure is None:
        return AutotuneError("the attempt came neither to a measurement nor to a failure")
    evidence = f" [{failure.evidence[0]}]" if failure.evidence else ""
    message = f"{failure.kind.replace('_', ' ')} while {failure.stage.replace('_', ' ')}: {failure.detail}{evidence}"
    hint = f"the engine's log lies in {folder}"
    if failure.kind in _REFUSED:
        return InputError(message, hint=hint)
    return HostError(message, hint=hint) if failure.blame is Blame.HOST else NothingFeasible(message, hint=hint)


def _view(
    work: _Work,
    engine: EngineChoice,
    resolved: ResolvedConfig,
    outcome: AttemptOutcome,
    measurement: Measurement,
    folder: Path,
) -> MeasureView:
    config, question = work.config, work.question
    words = serve_command("python", resolved.config)
    base = MeasureView(
        subject=shlex.join(hide_argument_secrets(words)),
        mode=work.request.mode,
        simulated=engine.vllm is None,
        complete=True,
        engine=f"{engine.kind} {engine.version}",
        model=config.model.name,
        workload=describe_workload(config.workload),
        seed=config.seed,
        confidence=question.rules.confidence,
        notes=[*work.notes, *outcome.notes],
        folder=str(folder),
    )
    if work.measured:
        return with_curve(base, work.measured, question)
    if outcome.capacity is not None:
        return with_capacity(base, outcome, outcome.capacity, question)
    return with_figures(base, measurement, question)
