"""CPU and memory of the engine and of the load generator over the window, and the generator's own delay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import psutil

from optimizer.core.measurement import HostUsage

TICK_S = 0.05
"""Period of the ticker whose lateness shows how long the event loop is held up."""


class HostUsageMonitor:
    """Watches both sides of the load between `mark_start` and `mark_end`.

    Use it as an async context manager, on the event loop that runs the load: its ticker is late by as much as the
    stamps of the tokens are.

    Args:
        engine_pids: Gives the engine's processes at the time of the call; their descendants are found from them.
    """

    def __init__(self, engine_pids: Callable[[], Iterable[int]]) -> None:
        self._engine_pids = engine_pids
        self._start: asyncio.Future[_Snapshot] | None = None
        self._end: asyncio.Future[_Snapshot] | None = None
        self._lateness_s: list[float] = []
        self._ticker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._ticker = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await asyncio.gather(*(snapshot for snapshot in (self._start, self._end) if snapshot is not None))

    def mark_start(self) -> None:
        """The window opens now."""
        self._start = self._look()

    def mark_end(self) -> None:
        """The window closes now."""
        self._end = self._look()

    def _look(self) -> asyncio.Future[_Snapshot]:
        """In a thread: to find the engine's processes takes tens of milliseconds, and no token would be stamped."""
        return asyncio.get_running_loop().run_in_executor(None, lambda: _Snapshot(self._engine_pids()))

    def result(self) -> HostUsage:
        """Use between the marks, to be asked after the context was left; all None when a mark is missing.

        A process that ended within the window counts with nothing, one that was born in it counts from its birth.
        """
        if self._start is None or self._end is None:
            return HostUsage()
        start, end = self._start.result(), self._end.result()
        elapsed_s = end.at_s - start.at_s
        if elapsed_s <= 0.0:
            return HostUsage()
        engine_cpu_s = sum(cpu_s - start.engine_cpu_s.get(process, 0.0) for process, cpu_s in end.engine_cpu_s.items())
        seen = bool(end.engine_cpu_s)
        return HostUsage(
            engine_cpu_cores=engine_cpu_s / elapsed_s if seen else None,
            client_cpu_cores=(end.client_cpu_s - start.client_cpu_s) / elapsed_s,
            engine_rss_bytes=end.engine_rss_bytes if seen else None,
            client_lag_p99_ms=float(np.percentile(self._lateness_s, 99)) * 1000.0 if self._lateness_s else None,
        )

    async def _tick(self) -> None:
        while True:
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            if self._start is not None and self._end is None:
                self._lateness_s.append(max(0.0, time.monotonic() - due_s))


class _Snapshot:
    """CPU seconds so far, and resident memory, of the engine's processes and of this one."""

    def __init__(self, engine_pids: Iterable[int]) -> None:
        self.at_s = time.monotonic()
        self.client_cpu_s = _cpu_s(psutil.Process())
        self.engine_cpu_s: dict[tuple[int, float], float] = {}
        self.engine_rss_bytes = 0.0
        for process in _with_descendants(engine_pids):
            try:
                with process.oneshot():
                    # A pid alone may be given to another process within the window.
                    self.engine_cpu_s[process.pid, process.create_time()] = _cpu_s(process)
                    self.engine_rss_bytes += float(process.memory_info().rss)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _with_descendants(pids: Iterable[int]) -> Iterator[psutil.Process]:
    """Each process of `pids` and below it once, as far as they live."""
    seen: set[int] = set()
    for pid in pids:
        try:
            root = psutil.Process(pid)
            family: Sequence[psutil.Process] = (root, *root.children(recursive=True))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        for process in family:
            if process.pid not in seen:
                seen.add(process.pid)
                yield process
