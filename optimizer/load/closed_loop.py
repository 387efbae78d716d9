"""The closed loop: a fixed number of requests under way, a ramp, a measuring window, and a drain.

Ramp: load runs until every slot has ended one request, or for `warmup.max_s`; by then the first burst of prefills is
over and completions come at their own pace.

Window: requests scheduled inside it are counted, tokens that arrive inside it make the throughput. It closes once it is
`min_s` long and `min_requests` counted requests have ended, and at `max_s` in any case.

Drain: load goes on, so that the last counted requests are served under the same pressure as the first, until all
counted ones have ended, but for `max_s` at most. What has not ended then is a failure: leaving the slowest out would
flatter the tail.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import aiohttp

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.measurement import LoadResult
from optimizer.load.completion import RequestTrace, open_session, stream_completion
from optimizer.load.failure import LoadFailed
from optimizer.load.requests import PlannedRequest, RequestPlan
from optimizer.load.result import to_load_result
from optimizer.load.warm_up import failure_evidence
from optimizer.load.workload import Workload

FAILURES_IN_A_ROW = 20
"""So many failures without one success between them end the run: the engine is gone or refuses everything."""
FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 2.0
"""A slot that fails waits, twice as long each time, so that a vanished server is not asked in a busy loop."""
PROGRESS_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far the window is.

    Attributes:
        done_requests: Counted requests that have ended.
        elapsed_s: Time since it opened.
        window_s: How long it will be, as far as one can tell now.
    """

    done_requests: int
    elapsed_s: float
    window_s: float


def _ignore(*_: object) -> None:
    """Stands in where the caller does not listen."""


async def run_closed_loop(
    endpoint: EngineEndpoint,
    workload: Workload,
    plan: RequestPlan,
    *,
    on_progress: Callable[[LoadProgress], None] = _ignore,
    on_window_open: Callable[[], None] = _ignore,
    on_window_close: Callable[[], None] = _ignore,
) -> LoadResult:
    """Loads the engine and measures one window. Cancelling it closes every connection.

    Args:
        endpoint: The live engine.
        workload: Slots in flight, window and ramp.
        plan: The requests, drawn by number.
        on_progress: Told a few times a second while the window is open; must return at once.
        on_window_open: Called the moment the window opens, for whoever samples the engine and the host.
        on_window_close: Called the moment it closes; load still runs.

    Raises:
        LoadFailed: 20 requests in a row failed before the window opened.
    """
    loop = _ClosedLoop(endpoint, workload, plan)
    async with open_session() as session, asyncio.TaskGroup() as slots:
        tasks = [slots.create_task(loop.slot(session)) for _ in range(workload.arrivals.in_flight)]
        try:
            if await loop.ramp():
                on_window_open()
                await loop.measure(on_progress)
                on_window_close()
                await loop.drain()
        finally:
            for task in tasks:
                task.cancel()
    if loop.window_start_s == float("inf"):
        raise LoadFailed(
            f"{FAILURES_IN_A_ROW} requests in a row failed before the window opened",
            failure_evidence(trace for trace in loop.traces if trace.ended_s is not None),
        )
    return to_load_result(loop.traces, loop.window_start_s, loop.window_end_s)


@dataclass(slots=True)
class _ClosedLoop:
    endpoint: EngineEndpoint
    workload: Workload
    plan: RequestPlan
    traces: list[RequestTrace] = field(default_factory=list)
    window_start_s: float = float("inf")
    window_end_s: float = float("inf")
    _slots_ramped: int = 0
    _failures_in_a_row: int = 0
    _counted_ended: int = 0
    _counted_under_way: int = 0
    _ramp_numbers: Iterator[int] = field(default_factory=count)
    _window_numbers: Iterator[int] = field(default_factory=count)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def slot(self, session: aiohttp.ClientSession) -> None:
        """One user: sends a request, waits for its end, sends the next; for ever."""
        failures = 0
        for turn in count():
            trace = await self._one_request(session)
            self._slots_ramped += turn == 0
            self._changed.set()
            failures = 0 if trace.error is None else failures + 1
            if failures:
                await asyncio.sleep(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** (failures - 1)))

    async def _one_request(self, session: aiohttp.ClientSession) -> RequestTrace:
        scheduled_s = time.monotonic()
        counted = self.window_start_s <= scheduled_s < self.window_end_s
        request = self._next_request()
        trace = RequestTrace(scheduled_s, len(request.prompt), request.output_tokens)
        self.traces.append(trace)
        self._counted_under_way += counted
        await stream_completion(session, self.endpoint, request, trace)
        self._counted_under_way -= counted
        self._counted_ended += counted
        self._failures_in_a_row = 0 if trace.error is None else self._failures_in_a_row + 1
        return trace

    def _next_request(self) -> PlannedRequest:
        if self.window_start_s == float("inf"):
            return self.plan.ramp_request(next(self._ramp_numbers))
        return self.plan.request(next(self._window_numbers))

    @property
    def _hopeless(self) -> bool:
        return self._failures_in_a_row >= FAILURES_IN_A_ROW

    async def ramp(self) -> bool:
        """Runs load until it is level, then opens the window; False when it never will."""
        slots = self.workload.arrivals.in_flight
        deadline_s = time.monotonic() + self.workload.warmup.max_s
        while self._slots_ramped < slots and not self._hopeless and time.monotonic() < deadline_s:
            await self._wait_for_change(deadline_s)
        if self._hopeless:
            return False
        self.window_start_s = time.monotonic()
        return True

    async def measure(self, on_progress: Callable[[LoadProgress], None]) -> None:
        """Keeps the window open for as long as it must be."""
        window = self.workload.window
        report_at_s = self.window_start_s
        while not self._hopeless:
            now = time.monotonic()
            elapsed_s = now - self.window_start_s
            enough = elapsed_s >= window.min_s and self._counted_ended >= window.min_requests
            if enough or elapsed_s >= window.max_s:
                break
            if now >= report_at_s:
                on_progress(LoadProgress(self._counted_ended, elapsed_s, self._expected_window_s(elapsed_s)))
                report_at_s = now + PROGRESS_EVERY_S
            ends_s = self.window_start_s + (window.min_s if elapsed_s < window.min_s else window.max_s)
            await self._wait_for_change(min(ends_s, report_at_s))
        self.window_end_s = time.monotonic()

    def _expected_window_s(self, elapsed_s: float) -> float:
        window = self.workload.window
        if self._counted_ended == 0:
            return window.min_s if elapsed_s < window.min_s else window.max_s
        return min(window.max_s, max(window.min_s, elapsed_s * window.min_requests / self._counted_ended))

    async def drain(self) -> None:
        """Goes on under load until every counted request has ended."""
        deadline_s = time.monotonic() + self.workload.window.max_s
        while self._counted_under_way and not self._hopeless and time.monotonic() < deadline_s:
            await self._wait_for_change(deadline_s)

    async def _wait_for_change(self, until_s: float) -> None:
        """Returns when a request has ended, or at `until_s`."""
        self._changed.clear()
        try:
            async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            return
