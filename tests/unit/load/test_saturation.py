"""Over-saturation is seen in simulated queues, and a busy queue that keeps up is left alone."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest

from optimizer.core.measurement import LoadResult
from optimizer.load.saturation import is_saturated

PREFILL_S = 0.05


class Queue:
    """First come, first served, by `servers` with exponential service times; `warm_s` of it pass before the window."""

    def __init__(self, rng: Any, rate_per_s: float, load: float, servers: int, length_s: float, warm_s: float) -> None:
        scheduled = np.cumsum(rng.exponential(1 / rate_per_s, int(1.4 * rate_per_s * (length_s + warm_s)) + 50))
        service = rng.exponential(servers * load / rate_per_s, scheduled.size)
        free = [0.0] * servers
        began = np.empty_like(scheduled)
        for number, at in enumerate(scheduled):
            began[number] = max(at, heapq.heappop(free))
            heapq.heappush(free, began[number] + service[number])
        self.scheduled = scheduled - warm_s
        self.first = began + PREFILL_S - warm_s
        self.ended = self.first + service

    def after(self, seconds: int) -> LoadResult:
        """What is known so many seconds into the window."""
        mine = (self.scheduled >= 0) & (self.scheduled < seconds)
        marks = np.arange(1, seconds + 1)
        in_flight = np.searchsorted(self.scheduled, marks) - np.searchsorted(np.sort(self.ended), marks)
        first = np.where(self.first < seconds, self.first, np.nan)[mine]
        n = int(mine.sum())
        none = np.zeros(n, dtype=np.int64)
        return LoadResult(
            0.0,
            float(seconds),
            self.scheduled[mine],
            self.scheduled[mine],
            first,
            first,
            none,
            none,
            (None,) * n,
            np.zeros(0),
            0,
            0,
            in_flight_per_s=in_flight.astype(np.int64),
        )

    def alarm_s(self, seconds: int) -> int | None:
        """When it is called saturated first."""
        return next((at for at in range(5, seconds + 1) if is_saturated(self.after(at))), None)


@pytest.mark.parametrize(("rate_per_s", "servers"), [(10.0, 16), (40.0, 16), (40.0, 1)])
def test_a_queue_at_ninety_percent_is_never_called_saturated(rate_per_s: float, servers: int) -> None:
    rng = np.random.default_rng(11)
    alarms = [Queue(rng, rate_per_s, 0.9, servers, 60.0, 60.0).alarm_s(60) for _ in range(40)]
    assert alarms == [None] * 40


@pytest.mark.parametrize(("rate_per_s", "within_s"), [(20.0, 25), (40.0, 18), (100.0, 12)])
def test_a_queue_at_a_hundred_and_twenty_percent_soon_is(rate_per_s: float, within_s: int) -> None:
    rng = np.random.default_rng(12)
    alarms = [Queue(rng, rate_per_s, 1.2, 16, 60.0, 5.0).alarm_s(60) or 999 for _ in range(21)]
    assert np.median(alarms) <= within_s


def test_requests_that_pile_up_while_ttft_stays_are_not_called_so() -> None:
    """A batch that fills: long answers, none of which waits."""
    queue = Queue(np.random.default_rng(3), 40.0, 0.9, 16, 30.0, 0.0)
    queue.first = queue.scheduled + PREFILL_S
    queue.ended = queue.scheduled + 60.0
    assert queue.alarm_s(30) is None
