"""Samples the engine's own metrics while load runs, and reduces them to what happened in the window."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from itertools import pairwise
from types import TracebackType
from typing import Self

import aiohttp

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.measurement import EngineMetrics
from optimizer.metrics.exposition import Reading, Unreadable, parse_exposition
from optimizer.metrics.vllm_names import COUNTERS, GAUGES, OPTIONAL, SHARES

SCRAPE_TIMEOUT_S = 5.0
_REASONS = ("waiting_capacity", "waiting_deferred")


class EngineScraper:
    """Reads /metrics at intervals, and at once when the window opens and closes.

    Use it as an async context manager around the load; `result` is valid after it was left. A page that cannot be read
    is a note, never an error: the load's own figures do not depend on it.

    Args:
        endpoint: The live engine.
        session: Made and closed by the caller.
        interval_s: Time between two readings.
    """

    def __init__(self, endpoint: EngineEndpoint, session: aiohttp.ClientSession, *, interval_s: float = 0.5) -> None:
        self._endpoint = endpoint
        self._session = session
        self._interval_s = interval_s
        self._readings: list[tuple[float, Reading]] = []
        self._failures: list[str] = []
        self._start_s = -math.inf
        self._end_s = math.inf
        self._due = asyncio.Event()
        self._leaving = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is None:
            return
        if kind is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            return
        # A reading under way may be the one that belongs to a mark, so it is not cut off.
        self._leaving = True
        self._due.set()
        await self._task
        if not any(at >= self._end_s for at, _ in self._readings):
            await self._read_once()

    def mark_start(self) -> None:
        """The window opens now."""
        self._start_s = time.monotonic()
        self._due.set()

    def mark_end(self) -> None:
        """The window closes now."""
        self._end_s = time.monotonic()
        self._due.set()

    def result(self) -> EngineMetrics:
        """What happened between the marks (between the first and last reading where a mark is missing)."""
        return reduce_readings(self._readings, self._start_s, self._end_s, self._failures)

    @property
    def readings(self) -> Sequence[tuple[float, Reading]]:
        """When each reading was begun, and what it said, from before the window to after it."""
        return tuple(self._readings)

    async def _sample(self) -> None:
        while not self._leaving:
            self._due.clear()
            await self._read_once()
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def _read_once(self) -> None:
        at = time.monotonic()
        try:
            self._readings.append((at, await read_metrics(self._endpoint, self._session)))
        except Unreadable as error:
            self._failures.append(str(error))


async def read_metrics(endpoint: EngineEndpoint, session: aiohttp.ClientSession) -> Reading:
    """One reading of the engine's `/metrics`.

    Raises:
        Unreadable: No answer in 5 s, another status than 200, or a page that holds no metrics.
    """
    url, timeout = f"{endpoint.base_url}/metrics", aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_S)
    try:
        async with session.get(url, headers=endpoint.headers, timeout=timeout) as response:
            if response.status != 200:
                raise Unreadable(f"HTTP {response.status}")
            return parse_exposition((await response.read()).decode("utf-8", errors="replace"))
    except (aiohttp.ClientError, OSError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}".removesuffix(": ")) from error


def reduce_readings(
    readings: Sequence[tuple[float, Reading]], start_s: float, end_s: float, failures: Sequence[str]
) -> EngineMetrics:
    """Counter differences and gauge statistics over the window.

    The window's readings are those begun from `start_s` on, up to the first begun at or after `end_s`.

    Args:
        readings: When each was begun, and what it said, in order of time.
        start_s: Start of the window on the same clock.
        end_s: Its end.
        failures: Why readings failed, for the notes.
    """
    window: list[Reading] = []
    for at, reading in readings:
        if at >= start_s:
            window.append(reading)
            if at >= end_s:
                break
    notes: list[str] = []
    if failures:
        notes.append(
            f"{len(failures)} of {len(failures) + len(readings)} readings of /metrics failed; the last: {failures[-1]}"
        )
    if len(window) < 2:
        return EngineMetrics(notes=(*notes, f"/metrics was read {len(window)} times in the window; 2 are needed"))
    deltas = {name: _delta(window, name, notes) for name in COUNTERS}
    gauges = {name: _mean_and_max(window, name, notes) for name in (*GAUGES, *SHARES, *_REASONS)}
    pools = [reading.kv_cache_tokens for reading in window if reading.kv_cache_tokens is not None]
    if not pools:
        notes.append("the engine does not report the size of its KV cache")
    return EngineMetrics(
        preemptions=deltas["preemptions"],
        prefix_cache_hit_rate=_ratio(deltas["prefix_hits"], deltas["prefix_queries"]),
        spec_acceptance_rate=_ratio(deltas["accepted_tokens"], deltas["drafted_tokens"]),
        prompt_tokens=deltas["prompt_tokens"],
        generation_tokens=deltas["generation_tokens"],
        kv_cache_usage_mean=gauges["kv_cache_usage"][0],
        kv_cache_usage_max=gauges["kv_cache_usage"][1],
        running_mean=gauges["running"][0],
        running_max=gauges["running"][1],
        waiting_mean=gauges["waiting"][0],
        waiting_max=gauges["waiting"][1],
        kv_cache_tokens=pools[-1] if pools else None,
        engine_ttft_mean_ms=_mean_ms(deltas["ttft_s"], deltas["ttft_count"]),
        engine_itl_mean_ms=_mean_ms(deltas["itl_s"], deltas["itl_count"]),
        engine_queue_mean_ms=_mean_ms(deltas["queue_s"], deltas["queue_count"]),
        waiting_capacity_mean=gauges["waiting_capacity"][0],
        waiting_deferred_mean=gauges["waiting_deferred"][0],
        kv_block_tokens=window[-1].kv_block_tokens,
        notes=tuple(notes),
    )


def _delta(window: Sequence[Reading], name: str, notes: list[str]) -> float | None:
    """How far a counter went up; across a reset it starts again from zero."""
    values = [reading.values[name] for reading in window if name in reading.values]
    if not all(math.isfinite(value) for value in values):
        notes.append(f"{name}: the engine reports a value that is no number")
        return None
    if len(values) < 2:
        if name not in OPTIONAL:
            notes.append(f"{name}: not reported by the engine")
        return None
    if any(after < before for before, after in pairwise(values)):
        notes.append(f"{name}: the engine's counter was reset within the window")
    return sum(after - before if after >= before else after for before, after in pairwise(values))


def _mean_and_max(window: Sequence[Reading], name: str, notes: list[str]) -> tuple[float | None, float | None]:
    values = [reading.values[name] for reading in window if math.isfinite(reading.values.get(name, math.nan))]
    if not values:
        if name not in OPTIONAL:
            notes.append(f"{name}: not reported by the engine")
        return None, None
    return sum(values) / len(values), max(values)


def _mean_ms(total_s: float | None, count: float | None) -> float | None:
    mean_s = _ratio(total_s, count)
    return None if mean_s is None else mean_s * 1000.0


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
