"""Every scripted fault of a process is seen from outside, as the tuner would see it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

import aiohttp
import psutil
import pytest

from optimizer.engine.simulated.companions import DAEMON_MARK, FOREIGN_MODEL
from optimizer.engine.simulated.faults import Fault
from tests.integration.simulated_engine.conftest import alive


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
        (Fault.GPU_BUSY, "ValueError: Free memory on device cuda:0 (7.36/16.00 GiB) on startup is less than desired"),
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


async def test_a_core_that_dies_without_a_word_takes_the_server_along_with_exit_0(start):
    async with start(faults=[{"fault": "die_serving", "after_requests": 0}]) as server:
        assert "error" in (await server.stream(50)).chunks[-1]
        await server.until_unhealthy()
        assert await server.exit_status() == 0
        assert "OutOfMemoryError" not in server.log
        assert "EngineDeadError" in server.log


async def test_a_slow_start_tells_how_far_it_is_and_serves_in_the_end(start):
    async with start(ready=False, faults=[{"fault": "slow_start", "amount": 3}]) as server:
        await server.until_logged("Loading safetensors checkpoint shards:   0% Completed")
        assert await server.health() is None or "Application startup complete." in server.log
        await server.until_ready()
        assert server.log.count("Loading safetensors checkpoint shards:") >= 3


async def test_a_busy_start_computes_without_a_line(start):
    async with start(ready=False, faults=[{"fault": "busy_start", "amount": 60}]) as server:
        await server.until_logged("Initializing a V1 LLM engine")
        core, before = server.core(), server.log

        async def has_computed():
            times = core.cpu_times()
            return times.user + times.system > 0.5

        await server.until(has_computed)
        assert (server.log, await server.health()) == (before, None)


async def test_a_stuck_start_neither_computes_nor_writes(start):
    async with start(ready=False, faults=[{"fault": "never_ready"}]) as server:
        await server.until_logged("Initializing a V1 LLM engine")
        core, before = server.core(), server.log
        spent = core.cpu_times()
        with pytest.raises(psutil.TimeoutExpired):
            core.wait(timeout=0.5)
        # It may have been on its way to sleep: one that computes takes several times as much.
        assert sum(core.cpu_times()[:2]) - sum(spent[:2]) < 0.1
        assert server.log == before


async def test_hang_stops_tokens_while_health_says_200(start):
    async with start(faults=[{"fault": "hang_health_200", "after_requests": 1}]) as server:
        assert (await server.stream(3)).tokens == 3
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await server.stream(3)
        assert await server.health() == 200
        server.process.terminate()
        assert await server.exit_status() == 0


async def test_exit_silently_takes_both_processes(start):
    async with start(faults=[{"fault": "exit_silently", "after_requests": 0}]) as server:
        core = server.core()
        before = server.log
        with pytest.raises(aiohttp.ClientError):
            await server.stream(5000)
        assert await server.exit_status() == 0
        await server.until_gone(core)
        assert server.log == before


def in_session_of(leader: int, process: psutil.Process) -> bool:
    """Whether it belongs to the session, and is not its leader."""
    with suppress(ProcessLookupError):
        return process.pid != leader and os.getsid(process.pid) == leader
    return False


async def test_a_thief_on_the_port_answers_with_another_model_and_stays(start):
    async with start(ready=False, faults=[{"fault": "port_stolen", "amount": 0.5}]) as server:
        await server.until_health(200)
        # Not by its parent, who soon leaves.
        (thief,) = (one for one in psutil.process_iter() if in_session_of(server.process.pid, one))
        try:
            async with server.http.get(f"{server.url}/v1/models") as answer:
                assert [card["id"] for card in (await answer.json())["data"]] == [FOREIGN_MODEL]
            assert await server.exit_status() == 1
            assert "OSError: [Errno 98] Address already in use" in server.log
            assert await server.health() == 200
        finally:
            thief.terminate()
        await server.until_gone(thief)


async def daemon_of(mark: str) -> psutil.Process:
    """Polls: between its fork and its own program a process has another command line, and none for a moment."""
    async with asyncio.timeout(30.0):
        while True:
            for process in psutil.process_iter(["cmdline"]):
                if {DAEMON_MARK, mark} <= {*(process.info["cmdline"] or ())}:
                    return process
            await asyncio.sleep(0.02)


async def test_a_daemon_outlives_the_group_and_its_parent(start):
    mark = f"test/{os.getpid()}"
    async with start(faults=[{"fault": "daemon_child", "amount": 24}], AUTOTUNE_TRIAL=mark) as server:
        leader = server.process.pid
        daemon = await daemon_of(mark)
        try:
            assert daemon.environ() == {}
            assert daemon.ppid() not in (leader, server.core().pid)
            assert os.getsid(daemon.pid) != os.getsid(leader)

            async def holds_memory():
                return daemon.memory_info().rss >= 24 * 1024**2

            await server.until(holds_memory)
            os.killpg(leader, signal.SIGKILL)
            await server.exit_status()
            daemon.terminate()
            assert alive(daemon)
        finally:
            daemon.kill()
        await server.until_gone(daemon)


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
