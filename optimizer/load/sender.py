"""One process's share of the load: it sends what is due, and never decides when to stop.

Closed loop: each slot is a user who sends, waits for the answer, and sends the next. Open loop: requests leave when
they are due, whatever has become of those before; with a cap on requests in flight they wait for a slot. With sessions,
a slot or an arrival is a whole conversation, whose next turn is due a think time after the last answer.

Before the window opens requests have the ramp's numbers; from then on the window's, in order, from 0 on.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import NoReturn

from optimizer.load.arrival_process import ClosedLoop
from optimizer.load.arrivals import ramp_offsets_s, window_offsets_s
from optimizer.load.completion import LoadClient, RequestTrace
from optimizer.load.planned import Answer, PlannedRequest
from optimizer.load.requests import RequestPlan
from optimizer.load.slots import Slots
from optimizer.load.workload import Workload

FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 2.0
"""A user whose request failed waits, twice as long each time, so that a vanished server is not asked in a busy loop."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of the load a process sends: of `processes`, the one that takes numbers `index`, `index + processes`
    and so on, and as many of the slots."""

    index: int = 0
    processes: int = 1

    def of(self, number: int) -> int:
        """This process's part of so many slots."""
        return len(range(self.index, number, self.processes))


class Sender:
    """Sends one share of a workload.

    Args:
        workload: How requests arrive.
        plan: The requests, by number.
        client: Sends them.
        share: Which of them.
        traces: Takes every request as it becomes due.
        on_end: Told of every request that has ended.

    Attributes:
        exhausted: Whether nothing more will become due: a recorded trace that takes no time has been sent.
    """

    def __init__(
        self,
        workload: Workload,
        plan: RequestPlan,
        client: LoadClient,
        share: Share,
        *,
        traces: list[RequestTrace],
        on_end: Callable[[RequestTrace], None],
    ) -> None:
        self._workload = workload
        self._plan = plan
        self._client = client
        self._share = share
        self._traces = traces
        self._on_end = on_end
        cap = workload.arrivals.most_in_flight
        self._slots = Slots(None if cap is None or isinstance(workload.arrivals, ClosedLoop) else share.of(cap))
        self.exhausted = False
        self._opens_s = math.inf
        self._opening = asyncio.Event()
        self._awaited_s: dict[int, float] = {}
        self._ramp_numbers = self._numbers()
        self._window_numbers = self._numbers()

    @property
    def known_until_s(self) -> float:
        """Everything that was due before this is among the traces.

        It lies in the past while this process is late: a request that was due in a window must not be missed by
        whoever waits for the last of them.
        """
        return min((time.monotonic(), *self._awaited_s.values()))

    def _numbers(self) -> Iterator[int]:
        return count(self._share.index, self._share.processes)

    def open_window(self, at_s: float) -> None:
        """From `at_s` on, which is now or soon, requests are the window's."""
        self._opens_s = at_s
        self._opening.set()

    async def run(self, start_s: float) -> NoReturn:
        """Sends from `start_s` on, until it is cancelled."""
        async with asyncio.TaskGroup() as under_way:
            if isinstance(self._workload.arrivals, ClosedLoop):
                await _sleep_until(start_s)
                for _ in range(self._share.of(self._workload.arrivals.in_flight)):
                    under_way.create_task(self._user())
            else:
                await self._send_ramp(start_s, under_way)
                await self._send_window(under_way)
                self.exhausted = True
                await asyncio.get_running_loop().create_future()
        raise AssertionError("a sender never ends by itself")

    async def _user(self) -> None:
        failures = 0
        while True:
            due_s = time.monotonic()
            in_window = due_s >= self._opens_s
            number = next(self._window_numbers if in_window else self._ramp_numbers)
            trace = await self._conversation(number, due_s, in_window, self._make(number, in_window))
            failures = 0 if trace.error is None else failures + 1
            if trace.refused:
                await asyncio.sleep(0)
            elif failures:
                await asyncio.sleep(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** (failures - 1)))

    async def _send_ramp(self, start_s: float, under_way: asyncio.TaskGroup) -> None:
        for number, offset_s in self._shared(ramp_offsets_s):
            request = self._make(number, False)
            if not await self._window_is_later_than(start_s + offset_s):
                return
            under_way.create_task(self._conversation(number, start_s + offset_s, False, request))
        await self._opening.wait()

    async def _window_is_later_than(self, due_s: float) -> bool:
        """Waits until `due_s`; False, at once, when the window opens before that."""
        try:
            async with asyncio.timeout_at(due_s):
                await self._opening.wait()
        except TimeoutError:
            return True
        if due_s >= self._opens_s:
            return False
        await _sleep_until(due_s)
        return True

    async def _send_window(self, under_way: asyncio.TaskGroup) -> None:
        for number, offset_s in self._shared(window_offsets_s):
            # Made before it is due, so that it can leave on time.
            due_s = self._awaited_s[number] = self._opens_s + offset_s
            request = self._make(number, True)
            await _sleep_until(due_s)
            under_way.create_task(self._conversation(number, due_s, True, request))

    def _shared(self, offsets_of: Callable[..., Iterator[float]]) -> Iterator[tuple[int, float]]:
        """Numbers and times of this process's arrivals."""
        offsets_s = offsets_of(self._workload.arrivals, self._plan.study_seed, self._plan.recorded_offsets_s)
        return islice(enumerate(offsets_s), self._share.index, None, self._share.processes)

    def _make(self, number: int, in_window: bool, history: tuple[Answer, ...] = ()) -> PlannedRequest:
        return (self._plan.request if in_window else self._plan.ramp_request)(number, history)

    async def _conversation(self, number: int, due_s: float, in_window: bool, request: PlannedRequest) -> RequestTrace:
        """Sends one request, and with sessions the turns that follow it; returns the last."""
        history: tuple[Answer, ...] = ()
        while True:
            trace = RequestTrace.of(request, due_s, number)
            if trace.session is not None and not in_window:
                trace.session = -2 - trace.session
            self._traces.append(trace)
            if in_window:
                self._awaited_s.pop(number, None)
            await self._exchange(request, trace)
            self._on_end(trace)
            if trace.error is not None or request.think_s is None or trace.ended_s is None:
                return trace
            history = (*history, "" if trace.answer is None else trace.answer)
            due_s = trace.ended_s + request.think_s
            if in_window:
                self._awaited_s[number] = due_s
            request = self._make(number, in_window, history)
            await _sleep_until(due_s)

    async def _exchange(self, request: PlannedRequest, trace: RequestTrace) -> None:
        if request.refused is not None:
            trace.error, trace.ended_s = request.refused, time.monotonic()
            return
        trace.ready_s = await self._slots.take(trace.scheduled_s)
        try:
            await self._client.stream(request, trace)
        finally:
            self._slots.give_back()


async def _sleep_until(at_s: float) -> None:
    """Sleeps until `at_s`, at most a millisecond longer: the event loop's timers are that coarse.

    Also when it is past: answers get their turn between two arrivals.
    """
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))
