"""Samples threads and GPUs in a thread of its own, so that the event loop that stamps tokens is never held."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from optimizer.core.measurement import RoleUse
from optimizer.metrics.gpu_usage import GpuMeter, GpuSample
from optimizer.metrics.series import RolePoint
from optimizer.metrics.threads import ThreadMeter, ThreadSnapshot

_SHORTEST_S = 0.2
"""CPU of a shorter span is noise: where the kernel counts in ticks of 10 ms, one tick is 5 % of it."""


class HostSampler:
    """An async context manager around the load. Its thread has ended when it was left.

    Args:
        threads: Reads the CPU of threads.
        gpus: Reads the cards; None on a host without.
        interval_s: Time between two samples; a mark asks for one at once.
        now_s: The clock of the load.
    """

    def __init__(
        self,
        threads: ThreadMeter,
        gpus: GpuMeter | None,
        *,
        interval_s: float = 1.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads = threads
        self._gpus = gpus
        self._interval_s = interval_s
        self._now_s = now_s
        self._wake = threading.Event()
        self._leaving = False
        self._start_s, self._end_s = -math.inf, math.inf
        self._first: ThreadSnapshot | None = None
        self._last: ThreadSnapshot | None = None
        self._before: ThreadSnapshot | None = None
        self._marks_seen = 0
        self._marks = 0
        self.points: list[RolePoint] = []
        self.engine_cpus: int | None = None
        self._work: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._work = asyncio.get_running_loop().run_in_executor(None, self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._work is not None:
            self._leaving = True
            self._wake.set()
            await self._work

    def mark_start(self) -> None:
        """The window opens now."""
        self._start_s = self._now_s()
        self._poke()

    def mark_end(self) -> None:
        """The window closes now."""
        self._end_s = self._now_s()
        self._poke()

    def roles(self) -> tuple[RoleUse, ...]:
        """CPU by role over the window; empty when it was not sampled twice."""
        if self._first is None or self._last is None:
            return ()
        return self._threads.use(self._first, self._last)

    def gpu_window(self) -> Sequence[GpuSample]:
        """The samples from the first in the window to the first at its end or later."""
        found: list[GpuSample] = []
        for sample in self.gpu_samples:
            if sample.at_s >= self._start_s:
                found.append(sample)
                if sample.at_s >= self._end_s:
                    break
        return found

    @property
    def gpu_samples(self) -> Sequence[GpuSample]:
        """All samples of the cards."""
        return () if self._gpus is None else tuple(self._gpus.samples)

    def _poke(self) -> None:
        self._marks += 1
        self._wake.set()

    def _run(self) -> None:
        due_s = self._now_s()
        while True:
            # Whoever leaves or sets a mark while a sample is taken gets another one.
            leaving = self._leaving
            self._wake.clear()
            self._sample()
            if leaving:
                return
            due_s = max(due_s + self._interval_s, self._now_s())
            self._wake.wait(due_s - self._now_s())

    def _sample(self) -> None:
        marks = self._marks
        snapshot = self._threads.read(self._now_s, fresh=marks != self._marks_seen)
        self._marks_seen = marks
        if self._gpus is not None:
            self._gpus.sample(self._now_s())
        self._keep(snapshot)

    def _keep(self, snapshot: ThreadSnapshot) -> None:
        if self._first is None or self._first.at_s < self._start_s:
            self._first = snapshot
            self.engine_cpus = self._threads.allowed_cpus()
        elif self._last is None or self._last.at_s < self._end_s:
            self._last = snapshot
        if self._before is None:
            self._before = snapshot
        elif snapshot.at_s - self._before.at_s >= _SHORTEST_S:
            self.points.append((snapshot.at_s, self._threads.use(self._before, snapshot)))
            self._before = snapshot
