"""One attempt at one trial: launch, ready, warm up, measure, stop. The only way through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from optimizer.core.engine_config import EngineConfig
from optimizer.core.errors import HostError
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
_END_SEEN_S = 6.0
"""vLLM's API server looks every 5 s whether its EngineCore lives, and leaves when it does not."""
_MEMORY_TOLERANCE = 0.08
"""A virtual machine's memory was seen to grow by 6 % during one start; the record holds the pool as it came."""

T = TypeVar("T")


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
            HostError: The host cannot launch anything (no port, no guard) or not keep the samples (disk full).
            asyncio.CancelledError: The study was interrupted.
        """
        clock.enter(Stage.LAUNCHING)
        launch = self._launcher.launch(job.config, log=job.folder / ENGINE_LOG, marker=job.marker)
        engine, cancelled = await _to_its_end(launch)
        measurement, failure, startup = None, None, None
        try:
            if cancelled is not None:
                raise cancelled
            on_launch(engine.argv)
            startup = await engine.wait_ready(limit_s=job.start_limit_s)
            _check_memory(startup, job.expected_memory_gib)
            measurement = await self._load(engine, job, clock, on_progress)
        except EngineFailed as trouble:
            failure = trouble.failure
        except LoadFailed as trouble:
            failure = await _load_failure(engine, trouble, clock.stage)
        finally:
            stop = await _stop(engine, clock)
        if stop.left:
            measurement, failure = None, _survivors(stop)
        return AttemptOutcome(measurement, failure, engine.argv, startup, stop)

    async def _load(
        self, engine: EngineProcess, job: TrialJob, clock: StageClock, on_progress: Callable[[LoadProgress], None]
    ) -> Measurement:
        plan = RequestPlan(self._workload, job.study_seed, job.content_seed, engine.endpoint.vocab_size)
        clock.enter(Stage.WARMING_UP)
        notes = await engine.unless_it_ends(self._warm_up(engine, plan), Stage.WARMING_UP)
        clock.enter(Stage.MEASURING)
        measurement = await engine.unless_it_ends(self._measure(engine, plan, on_progress), Stage.MEASURING)
        _keep_samples(job.folder / REQUEST_SAMPLES, measurement.load)
        if not measurement.load.ok.any():
            raise LoadFailed("no request in the measuring window succeeded", _error_lines(measurement.load))
        if not measurement.load.ok.all():
            await _raise_if_dead(engine, Stage.MEASURING)
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


async def _stop(engine: EngineProcess, clock: StageClock) -> StopReport:
    """Stop the engine and see it gone, even while this task is being cancelled, or when no stage can be recorded."""
    try:
        clock.enter(Stage.STOPPING)
    finally:
        report, cancelled = await _to_its_end(engine.stop())
    clock.end()
    if cancelled is not None:
        raise cancelled
    return report


async def _to_its_end(work: Coroutine[Any, Any, T]) -> tuple[T, asyncio.CancelledError | None]:
    """Await work that must not be cut short and is bounded by itself: launching an engine, stopping it.

    Returns:
        Its result, and the cancellation that came meanwhile, for the caller to raise once it has tidied up.
    """
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    return task.result(), cancelled


def _keep_samples(path: Path, load: LoadResult) -> None:
    try:
        write_samples(path, load)
    except OSError as error:
        raise HostError(
            f"cannot write {path}: {error.strerror}",
            hint="free some space, then run the same command again: it goes on where it stopped",
        ) from error


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


async def _raise_if_dead(engine: EngineProcess, stage: Stage) -> None:
    """After requests failed: an engine that died under them explains it better than its clients do.

    Raises:
        EngineFailed: It has ended, or does so now.
    """
    if not await engine.is_healthy():
        await engine.unless_it_ends(asyncio.sleep(_END_SEEN_S), stage)


async def _load_failure(engine: EngineProcess, trouble: LoadFailed, stage: Stage) -> Failure:
    try:
        await _raise_if_dead(engine, stage)
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
