"""CPU and memory of real processes, and the delay of this event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from optimizer.core.measurement import HostUsage
from optimizer.metrics import HostUsageMonitor

SPIN_IN_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True)\\nwhile True: pass"])
child.wait()
"""


@pytest.fixture
def spinning() -> Iterator[int]:
    """The pid of a process that idles while its child uses a core."""
    process = subprocess.Popen(
        [sys.executable, "-c", SPIN_IN_A_CHILD], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process.pid
    subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=True)
    process.wait()
    process.stdout.close()


def until_it_used(process: psutil.Process, cpu_s: float) -> None:
    before_s = process.cpu_times().user
    while process.cpu_times().user < before_s + cpu_s:
        time.sleep(0.05)


async def test_the_whole_tree_counts(spinning: int) -> None:
    (child,) = psutil.Process(spinning).children()
    async with HostUsageMonitor(lambda: [spinning]) as monitor:
        monitor.mark_start()
        await asyncio.to_thread(until_it_used, child, 0.5)
        monitor.mark_end()
    usage = monitor.result()
    assert usage.engine_cpu_cores is not None
    # One core at most, told from a span that a busy host makes uncertain by some of it; counted twice it would be 2.
    assert 0.0 < usage.engine_cpu_cores < 1.9
    assert usage.engine_rss_bytes is not None
    assert usage.engine_rss_bytes > 5e6
    assert usage.client_cpu_cores is not None
    assert usage.client_cpu_cores < 1.1
    assert usage.client_lag_p99_ms is not None


async def test_a_process_named_twice_counts_once(spinning: int) -> None:
    once, twice = HostUsageMonitor(lambda: [spinning]), HostUsageMonitor(lambda: [spinning, spinning])
    for monitor in (once, twice):
        async with monitor:
            monitor.mark_start()
            await asyncio.sleep(0.01)
            monitor.mark_end()
    first, second = once.result().engine_rss_bytes, twice.result().engine_rss_bytes
    assert first is not None
    assert second == pytest.approx(first, rel=0.2)


async def test_a_held_up_event_loop_shows() -> None:
    async with HostUsageMonitor(lambda: []) as monitor:
        monitor.mark_start()
        await asyncio.sleep(0.01)
        time.sleep(0.25)  # noqa: ASYNC251 -- holding up the loop is the point
        await asyncio.sleep(0.06)
        monitor.mark_end()
    lag_ms = monitor.result().client_lag_p99_ms
    assert lag_ms is not None
    assert lag_ms > 150


@pytest.fixture
def gone() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


async def test_an_engine_that_is_gone_has_no_figures(gone: int) -> None:
    async with HostUsageMonitor(lambda: [gone]) as monitor:
        monitor.mark_start()
        await asyncio.sleep(0.01)
        monitor.mark_end()
    usage = monitor.result()
    assert (usage.engine_cpu_cores, usage.engine_rss_bytes) == (None, None)
    assert usage.client_cpu_cores is not None


async def test_without_both_marks_nothing_is_told() -> None:
    async with HostUsageMonitor(lambda: []) as monitor:
        monitor.mark_start()
    assert monitor.result() == HostUsage()


async def test_marks_do_not_hold_the_event_loop() -> None:
    """Finding the engine's processes is slow on a full host; the loop goes on meanwhile."""
    asked = threading.Event()

    def slow() -> list[int]:
        assert asked.wait(10)
        return []

    async with HostUsageMonitor(slow) as monitor:
        monitor.mark_start()
        asked.set()
        await asyncio.sleep(0.05)
        monitor.mark_end()
    assert monitor.result().client_cpu_cores is not None
