"""All observers together, around a load that does nothing."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from optimizer.core.endpoint import EngineEndpoint
from optimizer.host.gpu_activity import GpuActivity
from optimizer.host.gpus import Gpu
from optimizer.metrics import Telemetry
from tests.gpu.fake_nvml import FakeNvml

MakePage = Callable[..., str]
BUSY = GpuActivity(0.9, 0.4, 2**30, 500.0, 100.0, 1900.0, 3200.0, frozenset())


@asynccontextmanager
async def watching(page: Callable[[], str], **given: object) -> AsyncIterator[Telemetry]:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text=page())

    app = web.Application()
    app.router.add_get("/metrics", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        async with aiohttp.ClientSession() as session:
            endpoint = EngineEndpoint(f"http://{host}:{port}", "nonce")
            yield Telemetry(endpoint, session, engine_pids=lambda: [], **given)  # type: ignore[arg-type]
    finally:
        await runner.cleanup()


class Counting(FakeNvml):
    """Draws 5 J from one look to the next, and says in which thread it was asked."""

    looks = 0
    asked_in: set[int]

    def activity(self, gpu: Gpu) -> GpuActivity:
        with self._read:
            self.looks += 1
            self._read.notify_all()
        self.asked_in = {*getattr(self, "asked_in", set()), threading.get_ident()}
        return replace(BUSY, energy_j=100.0 + 5.0 * self.looks)

    async def looked(self, times: int) -> None:
        """Until the card was looked at so often."""
        await asyncio.to_thread(self._wait_for_looks, times)

    def _wait_for_looks(self, times: int) -> None:
        with self._read:
            assert self._read.wait_for(lambda: self.looks >= times, timeout=60)


async def test_the_window_is_told_of_engine_host_and_cards(make_page: MakePage, tmp_path: Path) -> None:
    nvml, numbers, several = Counting(), count(), asyncio.Event()
    path = tmp_path / "telemetry.csv.gz"

    def page() -> str:
        number = next(numbers)
        if number == 8:
            several.set()
        return make_page(preemptions=float(number))

    async with watching(page, gauges=nvml, gpus=nvml.cards, interval_s=0.05) as telemetry:
        async with telemetry:
            telemetry.mark_start()
            await asyncio.sleep(0.5)
            await several.wait()
            await nvml.looked(8)
            telemetry.mark_end()
        observed = telemetry.result()
        telemetry.write(path)
    assert observed.engine.preemptions is not None
    assert observed.engine.preemptions >= 3.0
    assert observed.engine.notes == ()
    assert [(use.role, use.busiest.pid) for use in observed.host.roles] == [("client", os.getpid())]
    assert observed.gpu.gpu_util_mean == pytest.approx(0.9)
    assert observed.gpu.gpu_energy_j is not None
    assert observed.gpu.gpu_energy_j >= 15.0
    assert threading.get_ident() not in nvml.asked_in
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode())))
    inside = next(row for row in rows if row["t_s"] == "0")
    assert (inside["phase"], inside["gpu_util"], inside["running"]) == ("window", "0.9", "3")
    assert [row for row in rows if row["phase"] == "window" and row["client_thread_cores"]]


async def test_a_driver_that_fails_and_a_cpu_without_counter_are_notes(make_page: MakePage) -> None:
    nvml = FakeNvml(broken="the NVIDIA driver does not answer")
    async with watching(make_page, gauges=nvml, gpus=nvml.cards) as telemetry:
        async with telemetry:
            telemetry.mark_start()
            telemetry.mark_end()
        notes = telemetry.result().engine.notes
    assert "the GPUs were sampled 0 times in the window; 2 are needed" in notes
    assert "the NVIDIA driver does not answer" in notes


async def test_marks_alone_are_enough_for_two_samples(make_page: MakePage) -> None:
    """A window shorter than the interval."""
    nvml = Counting()
    async with watching(make_page, gauges=nvml, gpus=nvml.cards, interval_s=60.0) as telemetry:
        async with telemetry:
            await nvml.looked(1)
            telemetry.mark_start()
            await nvml.looked(2)
            telemetry.mark_end()
        observed = telemetry.result()
    assert observed.gpu.gpu_energy_j == 5.0
    assert [use.role for use in observed.host.roles] == ["client"]


async def test_without_marks_everything_is_told_that_was_seen(make_page: MakePage, tmp_path: Path) -> None:
    async with watching(make_page, interval_s=0.05) as telemetry:
        async with telemetry:
            await asyncio.sleep(0.1)
        telemetry.write(tmp_path / "t.csv.gz")
        assert telemetry.result().host.engine_cpu_cores is None


async def test_a_load_that_breaks_leaves_no_thread(make_page: MakePage) -> None:
    async with watching(make_page, interval_s=60.0) as telemetry:
        started = time.monotonic()
        with pytest.raises(RuntimeError, match="load broke"):
            async with telemetry:
                raise RuntimeError("load broke")
        assert time.monotonic() - started < 30.0


async def test_an_observer_with_a_fault_of_its_own_is_not_silent(make_page: MakePage) -> None:
    class Faulty(FakeNvml):
        def activity(self, gpu: Gpu) -> GpuActivity:
            raise ZeroDivisionError

    nvml = Faulty()
    async with watching(make_page, gauges=nvml, gpus=nvml.cards) as telemetry:
        with pytest.raises(ZeroDivisionError):
            async with telemetry:
                await asyncio.sleep(0)
