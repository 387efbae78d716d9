"""A load process sees how late its own event loop is, and what it takes of the CPU."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from optimizer.load.self_watch import TICK_S, SelfWatch, health_of


async def test_a_loop_that_is_held_up_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = SelfWatch()
    start_s = time.monotonic()
    ticking = asyncio.create_task(watch.run())
    for _ in range(3):
        await asyncio.sleep(TICK_S / 2)
        time.sleep(0.12)  # noqa: ASYNC251 (that is the point)
    await asyncio.sleep(TICK_S)
    monkeypatch.setattr("optimizer.load.self_watch.FEWEST", 2)
    ticking.cancel()
    end_s = time.monotonic()
    health = health_of([watch], [], np.array([0.001, 0.002]), start_s, end_s)
    assert health.lag_p99_ms is not None
    assert health.lag_p99_ms > 50
    assert health.lateness_p99_ms == pytest.approx(1.99)
    assert watch.lags_s(end_s, end_s + 1).size == 0
    assert health.processes == 1


def watch_of(*samples: tuple[float, float]) -> SelfWatch:
    watch = SelfWatch()
    for at_s, cpu_s in samples:
        watch.at_s.append(at_s)
        watch.cpu_s.append(cpu_s)
        watch.lag_s.append(0.0)
    return watch


def test_cpu_is_that_of_the_window_and_of_all_processes() -> None:
    busy, idle = watch_of((0, 5.0), (10, 14.0), (20, 23.0)), watch_of((0, 1.0), (20, 3.0))
    health = health_of([busy], [idle], np.zeros(0), 5.0, 15.0)
    assert health.cpu_cores == pytest.approx(1.0)
    assert health.busiest_cores == pytest.approx(0.9)
    assert health.lateness_p99_ms is None
    assert watch_of().cpu_cores(0.0, 1.0) == 0.0


def test_one_stall_among_few_ticks_is_no_verdict() -> None:
    watch = watch_of(*((float(second), 0.0) for second in range(50)))
    watch.lag_s[7] = 3.0
    assert health_of([watch], [], np.full(99, 5.0), 0.0, 60.0).spoiled(10.0) is None
    assert health_of([watch], [], np.full(100, 5.0), 0.0, 60.0).spoiled(10.0) is not None
