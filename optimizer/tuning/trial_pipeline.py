"""One attempt at one trial: launch, ready, warm up, measure, stop. The only way through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from optimizer.core.engine_config import EngineConfig
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.measurement import LoadResult, Measurement
from optimizer.core.trial import Stage
from optimizer.engine.launch import EngineFailed, EngineLauncher, EngineProcess
from optimizer.engine.vllm.startup_log import StartupFacts
from optimizer.host.supervisor import StopReport
from optimizer.load import LoadFailed, LoadProgress, RequestPlan, Workload, run_closed_loop, warm_up, write_samples
from optimizer.metrics import EngineScraper, HostUsageMonitor
from optimizer.tuning.stage_clock import StageClock

ENGINE_LOG = "engine.log"
REQUEST_SAMPLES = "requests.csv.gz"
_END_SEEN_S = 3.0
_MEMORY_TOLERANCE = 0.03


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
    """

    marker: str
    config: EngineConfig
    expected_memory_gib: float | None
    folder: Path
    study_seed: int
    content_seed: int
    start_limit_s: float


@dataclass(frozen=True, slots=True, eq=False)
class AttemptOutcome:
    """What an attempt came to: a measurement or a failure, never both.

    Attributes:
        argv: How the engine was started; empty when it was not.
        startup: What the engine's log told of its memory, once it was ready.
        stop: How the engine went; None when it never came to life.
    """

    measurement: Measurement | None = None
    failure: Failure | None = None
    argv: tuple[str, ...] = ()
    startup: StartupFacts | None = None
    stop: StopReport | None = None


class TrialPipeline:
    """Runs attempts, one at a time.

    Args:
        launcher: Starts the engine.
        workload: What it is loaded with.
    """

    def __init__(self, launcher: EngineLauncher, workload: Workload) -> None:
        self._launcher = launcher
        self._workload = workload

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
            HostError: The host cannot launch anything: no port, no guard.
            asyncio.CancelledError: The study was interrupted.
        """
        clock.enter(Stage.LAUNCHING)
        engine = await self._launcher.launch(job.config, log=job.folder / ENGINE_LOG, marker=job.marker)
        measurement, failure, startup = None, None, None
        try:
            on_launch(engine.argv)
            startup = await engine.wait_ready(limit_s=job.start_limit_s)
            _check_memory(startup, job.expected_memory_gib)
            measurement = await self._load(engine, job, clock, on_progress)
        except EngineFailed as trouble:
            failure = trouble.failure
        except LoadFailed as trouble:
            failure = await _load_failure(engine, trouble, clock.stage)
        finally:
            clock.enter(Stage.STOPPING)
            stop = await _uninterrupted(engine.stop())
            clock.end()
        if stop.left:
            failure = _survivors(stop)
            measurement = None
        return AttemptOutcome(measurement, failure, engine.argv, startup, stop)

    async def _load(
        self, engine: EngineProcess, job: TrialJob, clock: StageClock, on_progress: Callable[[LoadProgress], None]
    ) -> Measurement:
        plan = RequestPlan(self._workload, job.study_seed, job.content_seed, engine.endpoint.vocab_size)
        clock.enter(Stage.WARMING_UP)
        notes = await engine.unless_it_ends(self._warm_up(engine, plan), Stage.WARMING_UP)
        clock.enter(Stage.MEASURING)
        measurement = await engine.unless_it_ends(self._measure(engine, plan, on_progress), Stage.MEASURING)
        write_samples(job.folder / REQUEST_SAMPLES, measurement.load)
        if not measurement.load.ok.any():
            raise LoadFailed("no request in the measuring window succeeded", _error_lines(measurement.load))
        return replace(measurement, engine=replace(measurement.engine, notes=(*notes, *measurement.engine.notes)))

    async def _warm_up(self, engine: EngineProcess, plan: RequestPlan) -> tuple[str, ...]:
        reset = await engine.reset_prefix_cache()
        await warm_up(engine.endpoint, self._workload, plan)
        return () if reset else ("the prefix cache could not be reset; the engine was fresh",)

    async def _measure(
        self, engine: EngineProcess, plan: RequestPlan, on_progress: Callable[[LoadProgress], None]
    ) -> Measurement:
        async with (
            aiohttp.ClientSession() as session,
            EngineScraper(engine.endpoint, session) as scraper,
            HostUsageMonitor(lambda: (engine.pid,)) as host,
        ):

            def opened() -> None:
                scraper.mark_start()
                host.mark_start()

            def closed() -> None:
                scraper.mark_end()
                host.mark_end()

            load = await run_closed_loop(
                engine.endpoint,
                self._workload,
                plan,
                on_progress=on_progress,
                on_window_open=opened,
                on_window_close=closed,
            )
        return Measurement(load=load, engine=scraper.result(), host=host.result())


async def _uninterrupted(stop: Coroutine[Any, Any, StopReport]) -> StopReport:
    """Await the stop of an engine to its end, even while this task is being cancelled; the stop itself is bounded."""
    task = asyncio.create_task(stop, name="stop-engine")
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


def _check_memory(startup: StartupFacts, expected_gib: float | None) -> None:
    """Refuse an engine that took another share of memory than the trial declares.

    vLLM takes a fraction of the memory that it finds at its start; on a virtual machine whose memory is plugged in as
    it is used, that total may have grown since we turned GiB into a fraction.
    """
    got = startup.requested_memory_gib
    if expected_gib is None or got is None or abs(got - expected_gib) <= _MEMORY_TOLERANCE * expected_gib + 0.01:
        return
    raise EngineFailed(
        Failure(
            kind=FailureKind.HOST_FAULT,
            stage=Stage.LAUNCHING,
            blame=Blame.HOST,
            detail=f"the engine took {got:.2f} GiB of memory where {expected_gib:.2f} GiB were declared: "
            "this host's total changed meanwhile",
            retryable=True,
        )
    )


async def _load_failure(engine: EngineProcess, trouble: LoadFailed, stage: Stage) -> Failure:
    """What a broken load means: an engine that died meanwhile explains it better than its clients do."""
    if await engine.ends_within(_END_SEEN_S):
        try:
            await engine.unless_it_ends(asyncio.sleep(0), stage)
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


def _error_lines(load: LoadResult) -> tuple[str, ...]:
    return tuple(sorted({error for error in load.errors if error is not None}))[:5]


def _survivors(stop: StopReport) -> Failure:
    pids = ", ".join(map(str, stop.left))
    return Failure(
        kind=FailureKind.HOST_FAULT,
        stage=Stage.STOPPING,
        blame=Blame.HOST,
        detail=f"processes {pids} of the engine survive SIGKILL and may hold its memory",
        retryable=True,
    )
