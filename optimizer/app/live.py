"""Loads a live server once, or level by level, with everything that is observed beside it."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import aiohttp

from optimizer.app.traffic import at_level
from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.measurement import LoadResult, Measurement
from optimizer.core.stop_reason import StopReason
from optimizer.host.gpus import Gpu
from optimizer.load import RequestPlan, Workload
from optimizer.load.driver import run_load
from optimizer.load.offline import run_offline
from optimizer.load.progress import LoadProgress
from optimizer.load.tokenizer import ModelTokenizer
from optimizer.load.warm_up import warm_up
from optimizer.metrics import GpuGauges, Telemetry
from optimizer.tuning.client_faults import doubled

StopWhen = Callable[[LoadResult], StopReason | None]
Spoiled = Callable[[Measurement], str | None]
"""Why the client's own delays make a measurement worthless; None where they do not."""
_PAUSE_S = 1.0
"""Between two levels, in which what was cancelled leaves the engine."""


def _no_pids() -> Iterable[int]:
    return ()


async def _no_reset() -> bool:
    return False


def _never(_: Measurement) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A server that runs, and what is known of it.

    Attributes:
        endpoint: Where it answers.
        tokenizer: Its model's, where the workload needs one.
        max_model_len: Longest request that it takes; None when it is not known.
        engine_pids: Gives its leaders, where it runs here and is ours to look into.
        reset_cache: Empties its prefix cache; of a server that is not ours it never does.
        compiled: Asked while load is warming up: whether it has compiled since it was last asked.
        processes: Load processes.
        gauges: NVML, where it runs on GPUs of this host that are ours to look at.
        gpus: Its cards.
    """

    endpoint: EngineEndpoint
    tokenizer: ModelTokenizer | None = None
    max_model_len: int | None = None
    engine_pids: Callable[[], Iterable[int]] = _no_pids
    reset_cache: Callable[[], Awaitable[bool]] = _no_reset
    compiled: Callable[[], bool] = lambda: False
    processes: int = 1
    gauges: GpuGauges | None = None
    gpus: Sequence[Gpu] = ()

    def plan(self, workload: Workload, seed: int) -> RequestPlan:
        """The requests of one run: lengths after the seed, content that no run had before."""
        return RequestPlan(
            workload,
            seed,
            secrets.randbits(31),
            self.endpoint.vocab_size,
            max_model_len=self.max_model_len,
            tokenizer=self.tokenizer,
        )


@dataclass(frozen=True, slots=True)
class Watchers:
    """Who is told how far it is.

    Attributes:
        stage: Told of `warming up` and `measuring`.
        progress: Told how far the window is.
    """

    stage: Callable[[str], None]
    progress: Callable[[LoadProgress], None]


async def measure_live(
    server: LiveServer,
    workload: Workload,
    seed: int,
    watchers: Watchers,
    *,
    decide: Callable[[], StopWhen] | None = None,
    spoiled: Spoiled = _never,
) -> Measurement:
    """Warm the server up and measure one window; again with more load processes where the client could not keep up.

    Args:
        server: The live server.
        workload: What is sent.
        seed: Of the lengths.
        watchers: Are told how far it is.
        decide: Makes what says when a run may stop, anew for each; None measures the shortest window.
        spoiled: Asked of each run. What it says of the last is for the caller to ask again.

    Raises:
        LoadFailed: Nothing was served before the window opened.
        ClientSpoiled: A load process failed.
        InputError: The workload does not fit the server.
    """
    while True:
        measurement = await _measured_once(server, workload, seed, watchers, None if decide is None else decide())
        why, processes = spoiled(measurement), doubled(server.processes)
        if why is None or processes == server.processes:
            return measurement
        watchers.stage(f"{why}; trying it again with {processes} load processes")
        server = replace(server, processes=processes)


async def _measured_once(
    server: LiveServer, workload: Workload, seed: int, watchers: Watchers, stop_when: StopWhen | None
) -> Measurement:
    plan = await _warmed_up(server, workload, seed, watchers)

    async def load(telemetry: Telemetry) -> LoadResult:
        return await run_load(
            server.endpoint,
            workload,
            plan,
            stop_when=stop_when,
            on_progress=watchers.progress,
            on_window_open=telemetry.mark_start,
            on_window_close=telemetry.mark_end,
            warm_up_extended=server.compiled,
            processes=server.processes,
        )

    return await _observed(server, load)


async def measure_offline(
    server: LiveServer, workload: Workload, seed: int, requests: int, watchers: Watchers
) -> Measurement:
    """Warm the server up, then send all requests at once.

    Raises:
        LoadFailed: No warm-up request was served.
        InputError: The workload does not fit the server.
    """
    plan = await _warmed_up(server, workload, seed, watchers)

    async def load(telemetry: Telemetry) -> LoadResult:
        return await run_offline(
            server.endpoint,
            plan,
            requests,
            limit_s=workload.window.max_s,
            on_progress=watchers.progress,
            on_window_open=telemetry.mark_start,
            on_window_close=telemetry.mark_end,
        )

    return await _observed(server, load)


@dataclass(frozen=True, slots=True, eq=False)
class LevelMeasured:
    """One level of a sweep.

    Attributes:
        level: Requests in flight, or arrivals per second.
        measurement: What was measured there.
    """

    level: float
    measurement: Measurement


async def sweep_live(
    server: LiveServer,
    workload: Workload,
    levels: Sequence[float],
    seed: int,
    watchers: Watchers,
    *,
    keep: Callable[[LevelMeasured], None],
    spoiled: Spoiled = _never,
) -> None:
    """Measure at one level after the other, the lowest first; over-saturation and failing end the sweep.

    Args:
        server: The live server.
        workload: What is sent; each level changes its arrivals alone.
        levels: Rising.
        seed: Of the lengths, the same at each level.
        watchers: Are told how far it is.
        keep: Given each level as it is measured, so that what was seen outlives a server that vanishes.
        spoiled: As for `measure_live`; load processes that one level takes stay for those above.

    Raises:
        LoadFailed: Nothing was served before the window opened.
        ClientSpoiled: A load process failed.
        InputError: The workload does not fit the server.
    """
    for number, level in enumerate(levels):
        if number:
            await asyncio.sleep(_PAUSE_S)
        told = Watchers(functools.partial(_say_level, watchers.stage, level), watchers.progress)
        measurement = await measure_live(server, at_level(workload, level), seed, told, spoiled=spoiled)
        if measurement.load.client is not None:
            server = replace(server, processes=max(server.processes, measurement.load.client.processes))
        keep(LevelMeasured(level, measurement))
        if measurement.load.stopped_by in (StopReason.SATURATED, StopReason.FAILURES):
            return


def _say_level(say: Callable[[str], None], level: float, stage: str) -> None:
    say(f"level {level:g}: {stage}")


async def _warmed_up(server: LiveServer, workload: Workload, seed: int, watchers: Watchers) -> RequestPlan:
    """The requests to measure with, once the server has served those of the warm-up."""
    plan = server.plan(workload, seed)
    watchers.stage("warming up")
    await server.reset_cache()
    await warm_up(server.endpoint, workload, plan)
    watchers.stage("measuring")
    return plan


async def _observed(server: LiveServer, load: Callable[[Telemetry], Awaitable[LoadResult]]) -> Measurement:
    """The load with what is observed beside it."""
    async with (
        aiohttp.ClientSession() as session,
        Telemetry(
            server.endpoint, session, engine_pids=server.engine_pids, gauges=server.gauges, gpus=server.gpus
        ) as telemetry,
    ):
        result = await load(telemetry)
    seen = telemetry.result()
    return Measurement(load=result, engine=seen.engine, host=seen.host, gpu=seen.gpu)
