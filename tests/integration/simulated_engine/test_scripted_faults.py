"""Every scripted fault is seen from outside, as the tuner would see it."""

from __future__ import annotations

import asyncio
import os
import signal

import aiohttp
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from optimizer.engine.simulated.faults import BURST_REQUESTS, SLOW_STREAM_FACTOR, Fault
from optimizer.engine.simulated.step_time import OVERHEAD_S


async def test_a_wrong_script_ends_with_2(start):
    async with start(ready=False, faults=[{"fault": "earthquake"}]) as server:
        assert await server.exit_status() == 2
        assert "unknown fault 'earthquake'" in server.log
        assert "Traceback" not in server.log


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault.PORT_TAKEN, "OSError: [Errno 98] Address already in use"),
        (Fault.DIE_LOADING, "Engine core initialization failed. See root cause above."),
        (Fault.KV_TOO_SMALL, "Based on the available memory, the estimated maximum model length is 4096."),
        (Fault.OOM_LOADING, "torch.OutOfMemoryError: CUDA out of memory."),
    ],
)
async def test_faults_at_start_exit_1(start, fault, text):
    async with start(ready=False, faults=[{"fault": fault}]) as server:
        assert await server.exit_status() == 1
        assert text in server.log
        assert "Application startup complete." not in server.log


async def test_a_fault_strikes_only_its_launch_and_its_flags(start, tmp_path):
    faults = [{"fault": "oom_loading", "nth_launch": 1}, {"fault": "port_taken", "when": {"max-num-seqs": 3}}]
    state = {"AUTOTUNE_SIM_STATE": str(tmp_path / "launches")}
    async with start(ready=False, faults=faults, **state) as first:
        assert await first.exit_status() == 1
    async with start(faults=faults, **state) as second:
        assert await second.health() == 200
    async with start("--max-num-seqs", "3", ready=False, faults=faults, **state) as third:
        assert await third.exit_status() == 1


async def test_never_ready_refuses_connections_until_stopped(start):
    async with start(ready=False, faults=[{"fault": "never_ready"}]) as server:
        await server.until_logged("Initializing a V1 LLM engine")
        core = server.core()
        assert [await server.health() for _ in range(20)] == [None] * 20
        server.process.terminate()
        assert await server.exit_status() == 0
        assert not core.is_running()


async def test_oom_under_load(start):
    async with start(faults=[{"fault": "oom_under_load", "after_requests": 1}]) as server:
        await server.complete([1], 3)
        assert "error" in (await server.stream(50)).chunks[-1]
        assert await server.exit_status() == 0
        assert "EngineCore encountered a fatal error." in server.log
        assert "torch.OutOfMemoryError: CUDA out of memory." in server.log


async def test_hang_stops_tokens_while_health_says_200(start):
    async with start(faults=[{"fault": "hang_health_200", "after_requests": 1}]) as server:
        assert (await server.stream(3)).tokens == 3
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await server.stream(3)
        assert await server.health() == 200
        server.process.terminate()
        assert await server.exit_status() == 0


async def test_slow_stream(start):
    async with start(faults=[{"fault": "slow_stream", "after_requests": 1}]) as server:
        await server.complete([1], 1)
        assert (await server.stream(50)).lasted_s >= 49 * SLOW_STREAM_FACTOR * OVERHEAD_S / 20


async def test_truncated_streams_end_without_done(start):
    async with start(faults=[{"fault": "truncated_sse"}]) as server:
        streamed = await server.stream(10)
        assert (streamed.status, streamed.tokens, streamed.done) == (200, 5, False)


@pytest.mark.parametrize(("fault", "status"), [(Fault.HTTP_500_BURST, 500), (Fault.HTTP_503_BURST, 503)])
async def test_bursts_of_http_errors_pass(start, fault, status):
    async with start(faults=[{"fault": fault, "after_requests": 1}]) as server:
        statuses = [(await server.stream(1)).status for _ in range(BURST_REQUESTS + 2)]
        assert statuses == [200] + [status] * BURST_REQUESTS + [200]


async def test_garbage_metrics(start):
    async with start(faults=[{"fault": "garbage_metrics"}]) as server:
        async with server.http.get(f"{server.url}/metrics") as answer:
            assert answer.status == 200
            body = (await answer.read()).decode(errors="replace")
        with pytest.raises(ValueError, match="invalid metric name"):
            list(text_string_to_metric_families(body))


async def test_exit_silently_takes_both_processes(start):
    async with start(faults=[{"fault": "exit_silently", "after_requests": 0}]) as server:
        core = server.core()
        before = server.log
        with pytest.raises(aiohttp.ClientError):
            await server.stream(5000)
        assert await server.exit_status() == 0
        await server.until_gone(core)
        assert server.log == before


async def test_escape_group_is_out_of_reach_of_killpg(start):
    async with start(faults=[{"fault": "escape_group"}]) as server:
        core = server.core()
        assert os.getsid(core.pid) != os.getsid(server.process.pid)
        os.killpg(server.process.pid, signal.SIGKILL)
        await server.exit_status()
        assert core.status() != psutil.STATUS_ZOMBIE
        core.kill()
        await server.until_gone(core)


async def test_ignore_sigterm_yields_to_sigkill_alone(start):
    async with start(faults=[{"fault": "ignore_sigterm"}]) as server:
        core = server.core()
        os.killpg(server.process.pid, signal.SIGTERM)
        assert (await server.complete([1], 20))["usage"]["completion_tokens"] == 20
        os.killpg(server.process.pid, signal.SIGKILL)
        assert await server.exit_status() == -signal.SIGKILL
        await server.until_gone(core)
