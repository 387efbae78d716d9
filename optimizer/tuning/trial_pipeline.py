"""One attempt at one trial: launch, ready, warm up, measure, stop. The only way through."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp

from optimizer.core.engine_config import EngineConfig
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.measurement import LoadResult, Measurement
from optimizer.core.record import ParamValue
from optimizer.core.reported import ReportedMetrics
from optimizer.core.trial import Stage, TrialRole
from optimizer.engine.launch import EngineFailed, EngineLauncher, EngineProcess
from optimizer.engine.vllm.compile_log import CompileWatch
from optimizer.engine.vllm.startup_log import StartupFacts
from optimizer.host.files import keep_file
from optimizer.host.gpus import Gpu
from optimizer.host.processes import tell_survivors
from optimizer.host.supervisor import StopReport
from optimizer.host.tasks import to_its_end, unless
from optimizer.load import LoadFailed, RequestPlan, Workload, write_samples
from optimizer.load.completion import RequestTrace
from optimizer.load.driver import run_load
from optimizer.load.failure import ClientSpoiled
from optimizer.load.progress import LoadProgress
from optimizer.load.result import partial_result
from optimizer.load.tokenizer import ModelTokenizer
from optimizer.load.warm_up import warm_up
from optimizer.metrics import GpuGauges, Telemetry
from optimizer.objectives.objective import CAPACITY
from optimizer.tuning.aim import Aim
from optimizer.tuning.capacity import CapacityFound, find_capacity
from optimizer.tuning.capacity_level import LevelRun
from optimizer.tuning.client_faults import check_client, client_failure
from optimizer.tuning.decision import StopDecision
from optimizer.tuning.liveness import HANG_S, TokenWatch
from optimizer.tuning.load_task import LoadTask, level_files
from optimizer.tuning.memory_check import check_memory
from optimizer.tuning.observation import observation_notes, whole_flag
from optimizer.tuning.stage_clock import StageClock

ENGINE_LOG = "engine.log"
REQUEST_SAMPLES = "requests.csv.gz"
SERIES = "series.csv.gz"
_SEEDS_APART = 7919
"""Between the lengths of one load run and those of the next on the same engine; studies have small seeds."""


@dataclass(frozen=True, slots=True)
class TrialJob:
    """One attempt to make.

    Attributes:
        marker: Study, trial and attempt, put into the engine's environment.
        config: What to launch.
        expected_memory_gib: Memory that was declared in GiB, to be compared with what the engine says it took.
        folder: Exists; takes the engine's log and the request samples.
        study_seed: Lengths and order of the requests: the same for every trial of the study.
        content_seed: Token content: another one for each attempt, so that no run feeds another's prefix cache.
        start_limit_s: How long the engine may take to be ready.
        processes: How many load processes send the requests; 1 is this one alone.
        tightest_limit_ms: Of the limits on latencies; a client that is late by a share of it spoils the run. None where
            there is no limit, or none is known yet.
        aim: What the load has to find out; None measures the shortest window that the workload allows.
        gpus: The engine's cards, where NVML knows them.
        gauges: NVML, to watch them with.
        number: The trial's.
        attempt: 1 for the first.
        role: Why the trial is run.
        params: The parameters that `config` comes from.
    """

    marker: str
    config: EngineConfig
    expected_memory_gib: float | None
    folder: Path
    study_seed: int
    content_seed: int
    start_limit_s: float
    processes: int = 1
    tightest_limit_ms: float | None = None
    aim: Aim | None = None
    gpus: tuple[Gpu, ...] = ()
    gauges: GpuGauges | None = None
    number: int = 0
    attempt: int = 1
    role: TrialRole = TrialRole.SEARCH
    params: Mapping[str, ParamValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class AttemptOutcome:
    """What an attempt came to: a measurement, figures that somebody else measured, or a failure; one of the three.

    Attributes:
        argv: How the engine was started; empty when it was not.
        startup: What the engine's log told of its memory, once it was ready.
        stop: How the engine went; None when it never came to life.
        notes: Remarks for a person.
        capacity: Where that is sought; the measurement is then that of its highest feasible rate.
    """

    measurement: Measurement | None = None
    failure: Failure | None = None
    argv: tuple[str, ...] = ()
    startup: StartupFacts | None = None
    stop: StopReport | None = None
    notes: tuple[str, ...] = ()
    reported: ReportedMetrics | None = None
    capacity: CapacityFound | None = None


class TrialPipeline:
    """Runs attempts, one at a time.

    Args:
        launcher: Starts the engine.
        workload: What it is loaded with.
        survivors_fail_once: Processes that cannot be ended fail the attempt that left them, and no later one: what
            they hold, a GPU, is used no more. On the CPU they go on holding the memory that every engine needs.
        hang_s: An engine that yields no token for so long under load hangs; one that starts may neither log nor
            compute for twice as long.
        tokenizer: The model's, where the workload needs one.
    """

    def __init__(
        self,
        launcher: EngineLauncher,
        workload: Workload,
        *,
        survivors_fail_once: bool = False,
        hang_s: float = HANG_S,
        tokenizer: ModelTokenizer | None = None,
    ) -> None:
        self._launcher = launcher
        self._workload = workload
        self._survivors_fail_once = survivors_fail_once
        self._hang_s = hang_s
        self._tokenizer = tokenizer
        self._known_survivors: frozenset[int] = frozenset()

    async def run(
        self,
        job: TrialJob,
        clock: StageClock,
        *,
        on_launch: Callable[[tuple[str, ...]], None],
        on_progress: Callable[[LoadProgress], None],
    ) -> AttemptOutcome:
        """Make the attempt. The engine is gone when this returns or raises, whatever happened.

        Args:
            job: What to run.
            clock: Told of every stage.
            on_launch: Given the engine's argv as soon as it runs.
            on_progress: Told how far the measuring window is.

        Raises:
            HostError: The host cannot launch anything (no port, no guard) or not keep the samples (disk full).
            asyncio.CancelledError: The study was interrupted.
        """
        clock.enter(Stage.LAUNCHING)
        launch = self._launcher.launch(job.config, log=job.folder / ENGINE_LOG, marker=job.marker)
        engine, cancelled = await to_its_end(launch)
        measurement, capacity, failure, startup = None, None, None, None
        try:
            if cancelled is not None:
                raise cancelled
            on_launch(engine.argv)
            startup = await engine.wait_ready(limit_s=job.start_limit_s, stall_s=2.0 * self._hang_s)
            check_memory(startup, job.expected_memory_gib)
            measurement, capacity = await self._load(engine, job, clock, on_progress)
        except EngineFailed as trouble:
            failure = trouble.failure
        except LoadFailed as trouble:
            failure = await self._load_failure(engine, trouble, clock.stage)
        except ClientSpoiled as trouble:
            failure = client_failure(trouble, clock.stage)
        finally:
            stop = self._new_survivors(await _stop(engine, clock))
        if stop.left:
            measurement, failure = None, survivors(stop)
        return AttemptOutcome(measurement, failure, engine.argv, startup, stop, capacity=capacity)

    def _new_survivors(self, stop: StopReport) -> StopReport:
        """The report without what an earlier attempt left, where that one alone answers for it."""
        if not self._survivors_fail_once:
            return stop
        known, self._known_survivors = self._known_survivors, frozenset(stop.left)
        return replace(stop, left=tuple(pid for pid in stop.left if pid not in known))

    async def _load(
        self, engine: EngineProcess, job: TrialJob, clock: StageClock, on_progress: Callable[[LoadProgress], None]
    ) -> tuple[Measurement, CapacityFound | None]:
        plan = self._plan(engine, job, self._workload, job.study_seed, job.content_seed)
        watch = TokenWatch(engine, hang_s=self._hang_s)
        clock.enter(Stage.WARMING_UP)
        traces: list[RequestTrace] = []
        work = unless(watch.until_stuck(Stage.WARMING_UP, traces), self._warm_up(engine, plan, traces))
        notes = await engine.unless_it_ends(work, Stage.WARMING_UP)
        clock.enter(Stage.MEASURING)
        capacity, traffic, seed = None, self._workload, job.study_seed
        if job.aim is not None and job.aim.objective.metric == CAPACITY:
            measure = functools.partial(self._measure_level, engine, watch, job, on_progress)
            max_num_seqs = whole_flag(job.config, "max-num-seqs")
            capacity = await find_capacity(job.aim, self._workload, measure, max_num_seqs=max_num_seqs)
            measurement, notes = capacity.measurement, (*notes, *capacity.notes)
            traffic, seed = capacity.run.workload, _seed_of(job, capacity.run)
            keep_file(job.folder / SERIES, (job.folder / f"{level_files(capacity.run.number)}{SERIES}").replace)
        else:
            task = LoadTask(self._workload, plan, None if job.aim is None else StopDecision(job.aim))
            measurement = await self._measure_watched(engine, task, watch, job, on_progress)
        _keep_samples(job.folder / REQUEST_SAMPLES, measurement.load)
        if not measurement.load.ok.any():
            raise LoadFailed("no request in the measuring window succeeded", _error_lines(measurement.load))
        if not measurement.load.ok.all():
            await self._raise_if_gone(engine, Stage.MEASURING)
        check_client(measurement.load, job.tightest_limit_ms, job.aim)
        notes += observation_notes(measurement, job.config, traffic, seed)
        told = replace(measurement.engine, notes=(*notes, *measurement.engine.notes))
        return replace(measurement, engine=told), capacity

    def _plan(
        self, engine: EngineProcess, job: TrialJob, workload: Workload, study_seed: int, content_seed: int
    ) -> RequestPlan:
        return RequestPlan(
            workload,
            study_seed,
            content_seed,
            engine.endpoint.vocab_size,
            max_model_len=whole_flag(job.config, "max-model-len"),
            tokenizer=self._tokenizer,
        )

    async def _measure_level(
        self,
        engine: EngineProcess,
        watch: TokenWatch,
        job: TrialJob,
        on_progress: Callable[[LoadProgress], None],
        run: LevelRun,
    ) -> Measurement:
        """One load run of several; its prompts are new, and so are its shared prefixes, which are sent first."""
        plan = self._plan(engine, job, run.workload, _seed_of(job, run), job.content_seed + run.number + 1)
        if plan.shared_prefixes:
            traces: list[RequestTrace] = []
            work = unless(watch.until_stuck(Stage.MEASURING, traces), self._warm_up(engine, plan, traces))
            await engine.unless_it_ends(work, Stage.MEASURING)
        task = LoadTask(run.workload, plan, run.stop_when, files=level_files(run.number))
        measurement = await self._measure_watched(engine, task, watch, job, on_progress)
        _keep_samples(job.folder / f"{task.files}{REQUEST_SAMPLES}", measurement.load)
        if run.stop_when is not None:
            check_client(measurement.load, job.tightest_limit_ms, job.aim)
        return measurement

    async def _measure_watched(
        self,
        engine: EngineProcess,
        task: LoadTask,
        watch: TokenWatch,
        job: TrialJob,
        on_progress: Callable[[LoadProgress], None],
    ) -> Measurement:
        """Measure; of an engine that hangs or ends meanwhile the requests so far are kept, as evidence alone."""
        traces: list[RequestTrace] = []
        work = unless(watch.until_stuck(Stage.MEASURING, traces), self._measure(engine, task, traces, job, on_progress))
        try:
            return await engine.unless_it_ends(work, Stage.MEASURING)
        except EngineFailed:
            _keep_samples(job.folder / REQUEST_SAMPLES, partial_result(traces))
            raise

    async def _warm_up(self, engine: EngineProcess, plan: RequestPlan, traces: list[RequestTrace]) -> tuple[str, ...]:
        reset = await engine.reset_prefix_cache()
        await warm_up(engine.endpoint, self._workload, plan, traces=traces)
        return () if reset else ("the prefix cache could not be reset; the engine was fresh",)

    async def _measure(
        self,
        engine: EngineProcess,
        task: LoadTask,
        traces: list[RequestTrace],
        job: TrialJob,
        on_progress: Callable[[LoadProgress], None],
    ) -> Measurement:
        async with (
            aiohttp.ClientSession() as session,
            Telemetry(
                engine.endpoint, session, engine_pids=lambda: (engine.pid,), gauges=job.gauges, gpus=job.gpus
            ) as telemetry,
        ):
            load = await run_load(
                engine.endpoint,
                task.workload,
                task.plan,
                stop_when=task.stop_when,
                on_progress=on_progress,
                on_window_open=telemetry.mark_start,
                on_window_close=telemetry.mark_end,
                warm_up_extended=CompileWatch(engine.log).compiled,
                traces=traces,
                processes=job.processes,
            )
        seen = telemetry.result()
        keep_file(job.folder / f"{task.files}{SERIES}", telemetry.write)
        return Measurement(load=load, engine=seen.engine, host=seen.host, gpu=seen.gpu)

    async def _load_failure(self, engine: EngineProcess, trouble: LoadFailed, stage: Stage) -> Failure:
        try:
            await self._raise_if_gone(engine, stage)
        except EngineFailed as ended:
            return ended.failure
        return Failure(
            kind=FailureKind.ERROR_RATE,
            stage=stage,
            blame=Blame.CONFIG,
            detail=trouble.message,
            evidence=trouble.evidence,
            retryable=True,
        )

    async def _raise_if_gone(self, engine: EngineProcess, stage: Stage) -> None:
        """After requests failed: an engine that died or hangs explains it better than its clients do.

        Raises:
            EngineFailed: It has ended, does so now, or does not answer one small completion.
        """
        await engine.raise_if_dead(stage)
        try:
            await engine.prove(stage, limit_s=self._hang_s)
        except EngineFailed as trouble:
            if trouble.failure.kind is not FailureKind.ERROR_RATE:
                raise


async def _stop(engine: EngineProcess, clock: StageClock) -> StopReport:
    """Stop the engine and see it gone, even while this task is being cancelled, or when no stage can be recorded."""
    try:
        clock.enter(Stage.STOPPING)
    finally:
        report, cancelled = await to_its_end(engine.stop())
    clock.end()
    if cancelled is not None:
        raise cancelled
    return report


def _seed_of(job: TrialJob, run: LevelRun) -> int:
    """Of the lengths in one load run of several."""
    return job.study_seed + _SEEDS_APART * (run.number + 1)


def _keep_samples(path: Path, load: LoadResult) -> None:
    keep_file(path, lambda to: write_samples(to, load))


def _error_lines(load: LoadResult) -> tuple[str, ...]:
    return tuple(sorted({error for error in load.errors if error is not None}))[:5]


def survivors(stop: StopReport) -> Failure:
    """The failure of an attempt that could not be ended."""
    pids = ", ".join(map(str, stop.left))
    return Failure(
        kind=FailureKind.HOST_FAULT,
        stage=Stage.STOPPING,
        blame=Blame.HOST,
        detail=tell_survivors(f"processes {pids} of the engine"),
        retryable=True,
    )
