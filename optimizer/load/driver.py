"""One load run: a ramp, a measuring window, a drain.

Ramp: load runs until throughput is level, or for `warmup.max_s`. In a closed loop every slot has then ended one
request, so that the first burst of prefills is over; in an open loop at least one request has. While the engine
compiles, nothing counts as level.

Window: requests scheduled inside it are counted, tokens that arrive inside it make the throughput. It closes once it is
`min_s` long and `min_requests` counted requests have ended and, where a verdict is asked for, that is reached; and in
any case at `max_s` or at `max_requests`.

Drain: load goes on, so that the last counted requests are served under the same pressure as the first, until all
counted ones have ended, but for `max_s` at most. What has not ended then is a failure: leaving the slowest out would
flatter the tail.
"""

from __future__ import annotations

import asyncio
import math
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import islice
from typing import Any

import numpy as np

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.measurement import LoadResult
from optimizer.core.stop_reason import StopReason
from optimizer.host.tasks import unless
from optimizer.load.arrival_process import ClosedLoop
from optimizer.load.completion import RequestTrace
from optimizer.load.crew import Crew, local_crew
from optimizer.load.failure import LoadFailed
from optimizer.load.level import Levelling
from optimizer.load.progress import LoadProgress, ignore
from optimizer.load.requests import RequestPlan
from optimizer.load.result import WindowRecord
from optimizer.load.saturation import is_saturated
from optimizer.load.self_watch import health_of
from optimizer.load.shards import sharded_crew
from optimizer.load.warm_up import failure_evidence
from optimizer.load.workload import Workload

FAILURES_IN_A_ROW = 20
"""So many failures without one success between them end the run: the engine is gone or refuses everything."""
FAILING_FOR_S = 2.0
"""In an open loop they must also come for so long: a burst that was refused as a whole is no end."""
PROGRESS_EVERY_S = 0.25
LOOK_EVERY_S = 1.0


async def run_load(
    endpoint: EngineEndpoint,
    workload: Workload,
    plan: RequestPlan,
    *,
    stop_when: Callable[[LoadResult], StopReason | None] | None = None,
    on_progress: Callable[[LoadProgress], None] = ignore,
    on_window_open: Callable[[], None] = ignore,
    on_window_close: Callable[[], None] = ignore,
    warm_up_extended: Callable[[], bool] = lambda: False,
    traces: list[RequestTrace] | None = None,
    processes: int = 1,
) -> LoadResult:
    """Loads the engine and measures one window. Cancelling it closes every connection.

    Args:
        endpoint: The live engine.
        workload: How requests arrive, the window and the ramp.
        plan: The requests, by number.
        stop_when: Asked once a second while the window is open, with what is known so far; those still under way have
            the error `UNFINISHED`. A reason ends the run at once, or closes the window once its minima are reached.
            None closes it when they are.
        on_progress: Told a few times a second while the window is open; must return at once.
        on_window_open: Called the moment the window opens, for whoever samples the engine and the host.
        on_window_close: Called the moment it closes; load may still run.
        warm_up_extended: Asked once a second of the ramp: whether the engine has compiled since it was last asked.
        traces: Takes every request as it is scheduled, for whoever watches them while the load runs.
        processes: How many processes send; 1 is this one alone.

    Raises:
        LoadFailed: 20 requests in a row failed before the window opened.
        ClientSpoiled: A load process did not start, or ended by itself.
        InputError: The endpoint's address is no http(s) URL.
    """
    _allow_many_connections()
    run = _Run(workload, [] if traces is None else traces, stop_when, on_progress)
    async with _crew(endpoint, workload, plan, run, processes) as crew:
        await run.start(crew)
        await unless(crew.alarm(), run.through(crew, on_window_open, on_window_close, warm_up_extended))
        await crew.stop()
        return run.result(crew)


def _crew(
    endpoint: EngineEndpoint, workload: Workload, plan: RequestPlan, run: _Run, processes: int
) -> AbstractAsyncContextManager[Crew]:
    if processes == 1:
        return local_crew(endpoint, workload, plan, traces=run.traces, on_end=run.ended)
    return sharded_crew(endpoint, workload, plan, processes, traces=run.traces, on_end=run.ended)


def _allow_many_connections() -> None:
    """As many open files as this process may have: each request under way takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Run:
    """The phases of one run, and what they are decided on.

    Attributes:
        traces: Every request.
    """

    def __init__(
        self,
        workload: Workload,
        traces: list[RequestTrace],
        stop_when: Callable[[LoadResult], StopReason | None] | None,
        on_progress: Callable[[LoadProgress], None],
    ) -> None:
        self.traces = traces
        self._workload = workload
        self._stop_when = stop_when
        self._on_progress = on_progress
        self._closed_loop = isinstance(workload.arrivals, ClosedLoop)
        self._record = WindowRecord(traces, math.inf)
        self._start_s = self._window_start_s = self._window_end_s = math.inf
        self._level = False
        self._stopped_by = StopReason.WINDOW
        self._ramped = 0
        self._counted_ended = 0
        self._failures_in_a_row = 0
        self._failing_since_s = math.inf
        self._changed = asyncio.Event()

    def ended(self, trace: RequestTrace) -> None:
        """A request has ended."""
        in_ramp = trace.scheduled_s < self._window_start_s
        self._counted_ended += self._window_start_s <= trace.scheduled_s < self._window_end_s
        first = self._workload.arrivals.in_flight if isinstance(self._workload.arrivals, ClosedLoop) else 1
        self._ramped += in_ramp and trace.turn == 0 and (not self._closed_loop or trace.number < first)
        if trace.error is None:
            self._failures_in_a_row, self._failing_since_s = 0, math.inf
        else:
            self._failures_in_a_row += 1
            self._failing_since_s = min(self._failing_since_s, time.monotonic())
        self._changed.set()

    @property
    def _failing(self) -> bool:
        long = self._closed_loop or time.monotonic() - self._failing_since_s >= FAILING_FOR_S
        return self._failures_in_a_row >= FAILURES_IN_A_ROW and long

    async def start(self, crew: Crew) -> None:
        """Has the crew begin.

        Raises:
            ClientSpoiled: It does not.
        """
        self._start_s = await crew.start()

    async def through(
        self,
        crew: Crew,
        on_window_open: Callable[[], None],
        on_window_close: Callable[[], None],
        warm_up_extended: Callable[[], bool],
    ) -> None:
        """Ramp, window and drain.

        Raises:
            LoadFailed: The window never opened.
        """
        if not await self._ramp(warm_up_extended):
            raise LoadFailed(
                f"{FAILURES_IN_A_ROW} requests in a row failed before the window opened",
                failure_evidence(trace for trace in self.traces if trace.ended_s is not None),
            )
        self._window_start_s = crew.open_window()
        self._record = WindowRecord(self.traces, self._window_start_s)
        await asyncio.sleep(max(0.0, self._window_start_s - time.monotonic()))
        on_window_open()
        self._stopped_by = await self._measure(crew)
        self._window_end_s = time.monotonic()
        on_window_close()
        if not self._stopped_by.ends_at_once:
            await self._drain(crew)

    async def _ramp(self, warm_up_extended: Callable[[], bool]) -> bool:
        """Runs load until it is level; False when it never will be."""
        slots = self._workload.arrivals.in_flight if isinstance(self._workload.arrivals, ClosedLoop) else 1
        max_s = self._workload.warmup.max_s
        levelling = Levelling(self.traces, self._start_s, max_s)
        deadline_s = self._start_s + max_s
        look_at_s = self._start_s
        while not self._failing:
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return True
            if now_s >= look_at_s:
                look_at_s = now_s + levelling.slice_s
                if warm_up_extended():
                    levelling.start_again(now_s)
                    # Compiled for the first requests of a shape; a level stretch still has to follow.
                    deadline_s = min(max(deadline_s, now_s + max_s / 2.0), self._start_s + 2.0 * max_s)
                elif self._ramped >= slots and levelling.is_level(now_s):
                    self._level = True
                    return True
            await self._wait_for_change(min(deadline_s, look_at_s))
        return False

    async def _measure(self, crew: Crew) -> StopReason:
        """Keeps the window open for as long as it must be; returns why it may close."""
        window = self._workload.window
        look_at_s = self._window_start_s + LOOK_EVERY_S
        report_at_s = self._window_start_s
        asked: StopReason | None = None
        while not self._failing:
            now_s = time.monotonic()
            elapsed_s = now_s - self._window_start_s
            if now_s >= look_at_s:
                asked = self._look(crew.known_until_s)
                look_at_s += LOOK_EVERY_S * math.ceil((now_s - look_at_s) / LOOK_EVERY_S + 1e-9)
            reason = self._reason(elapsed_s, asked, crew)
            if reason is not None:
                return reason
            if now_s >= report_at_s:
                self._on_progress(LoadProgress(self._counted_ended, elapsed_s, self._expected_window_s(elapsed_s)))
                report_at_s = now_s + PROGRESS_EVERY_S
            ends_s = self._window_start_s + (window.min_s if elapsed_s < window.min_s else window.max_s)
            await self._wait_for_change(min(ends_s, report_at_s, look_at_s))
        return StopReason.FAILURES

    def _reason(self, elapsed_s: float, asked: StopReason | None, crew: Crew) -> StopReason | None:
        """Why the window may close now, or None."""
        window = self._workload.window
        if asked is not None and asked.ends_at_once:
            return asked
        if elapsed_s >= window.min_s and self._counted_ended >= window.min_requests:
            if self._stop_when is None:
                return StopReason.WINDOW
            if asked is not None:
                return asked
        spent = window.max_requests is not None and self._counted_ended >= window.max_requests
        if spent or elapsed_s >= window.max_s or (crew.exhausted and self._all_ended()):
            return StopReason.BUDGET
        return None

    def _all_ended(self) -> bool:
        return all(trace.ended_s is not None for trace in self._counted())

    def _look(self, known_until_s: float) -> StopReason | None:
        if self._stop_when is None and self._closed_loop:
            return None
        known = self._record.look(max(known_until_s, self._window_start_s), **self._ramp_facts)
        if not self._closed_loop and is_saturated(known):
            return StopReason.SATURATED
        return None if self._stop_when is None else self._stop_when(known)

    def _expected_window_s(self, elapsed_s: float) -> float:
        window = self._workload.window
        if self._counted_ended == 0:
            return window.min_s if elapsed_s < window.min_s else window.max_s
        return min(window.max_s, max(window.min_s, elapsed_s * window.min_requests / self._counted_ended))

    async def _drain(self, crew: Crew) -> None:
        """Goes on under load until every counted request has ended."""
        deadline_s = time.monotonic() + self._workload.window.max_s
        waited_for: list[RequestTrace] = []
        seen = 0
        while not self._failing and time.monotonic() < deadline_s:
            known_until_s = crew.known_until_s
            waited_for = [trace for trace in (*waited_for, *self._counted(seen)) if trace.ended_s is None]
            seen = len(self.traces)
            if known_until_s >= self._window_end_s and not waited_for:
                return
            await self._wait_for_change(min(deadline_s, time.monotonic() + PROGRESS_EVERY_S))

    def _counted(self, first: int = 0) -> Iterator[RequestTrace]:
        """The requests that were scheduled in the window, from trace `first` on."""
        for trace in islice(self.traces, first, None):
            if self._window_start_s <= trace.scheduled_s < self._window_end_s:
                yield trace

    def result(self, crew: Crew) -> LoadResult:
        """What the run came to; nothing runs any more."""
        start_s, end_s = self._window_start_s, self._window_end_s
        late_s = [trace.sent_s - trace.ready_s for trace in self._counted() if trace.sent_s and trace.ready_s]
        health = health_of(crew.senders, crew.others, np.array(late_s, dtype=np.float64), start_s, end_s)
        facts = self._ramp_facts | {"stopped_by": self._stopped_by, "client": health}
        return self._record.look(time.monotonic(), end_s, **facts)

    @property
    def _ramp_facts(self) -> dict[str, Any]:
        return {"warm_up_s": self._window_start_s - self._start_s, "level": self._level}

    async def _wait_for_change(self, until_s: float) -> None:
        """Returns when a request has ended, or at `until_s`."""
        self._changed.clear()
        try:
            async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            return
