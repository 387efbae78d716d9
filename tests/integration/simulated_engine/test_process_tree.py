"""How the simulated engine ends: refused settings, signals, and the death of one of its two processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import aiohttp
import psutil
import pytest


@pytest.mark.parametrize(
    ("flags", "status", "text"),
    [
        (["--num-gpu-blocks-override", "4"], 1, "To serve at least one request with the model's max seq len (8192)"),
        (
            ["--max-num-seqs", "64", "--max-num-batched-tokens", "32"],
            1,
            "max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64)",
        ),
        (["--foo"], 2, "error: unrecognized arguments: --foo"),
    ],
)
async def test_what_does_not_fit_ends_with_vllms_words(start, flags, status, text):
    async with start(*flags, ready=False) as server:
        assert await server.exit_status() == status
        assert text in server.log


async def test_a_taken_port_ends_with_1(start):
    with socket.socket() as occupant:
        occupant.bind(("127.0.0.1", 0))
        occupant.listen()
        async with start(ready=False, port=occupant.getsockname()[1]) as server:
            assert await server.exit_status() == 1
            assert "OSError: [Errno 98] Address already in use" in server.log


@pytest.mark.parametrize(("send", "number"), [(os.kill, signal.SIGTERM), (os.killpg, signal.SIGINT)])
async def test_a_stop_signal_in_mid_stream_leaves_nothing_and_exits_0(start, send, number):
    async with start(speed=1.0) as server:
        core = server.core()
        assert core.name().startswith("VLLM::Engine")
        request = asyncio.create_task(server.stream(5000))
        await server.until_generating()
        send(server.process.pid, number)
        assert await server.exit_status() == 0
        assert not core.is_running()
        assert "EngineDeadError" not in server.log
        with pytest.raises(aiohttp.ClientError):
            await request


async def test_a_killed_leader_leaves_its_engine_core_behind(start):
    async with start(speed=1.0) as server:
        core = server.core()
        request = asyncio.create_task(server.stream(5000))
        await server.until_generating()
        server.process.kill()
        await server.exit_status()
        with pytest.raises(aiohttp.ClientError):
            await request
        try:
            with pytest.raises(psutil.TimeoutExpired):
                core.wait(timeout=0.5)
            assert core.status() != psutil.STATUS_ZOMBIE
            assert await server.health() is None
        finally:
            core.terminate()
        await server.until_gone(core)


async def test_a_killed_engine_core_takes_the_server_with_it(start):
    async with start(speed=1.0) as server:
        request = asyncio.create_task(server.stream(5000))
        await server.until_generating()
        server.core().kill()
        await server.until_unhealthy()
        assert "error" in (await request).chunks[-1]
        assert await server.exit_status() == 0
        assert "EngineDeadError: EngineCore encountered an issue." in server.log


async def test_kept_alive_after_the_engines_death_it_says_503_until_stopped(start):
    async with start(VLLM_KEEP_ALIVE_ON_ENGINE_DEATH="1") as server:
        server.core().kill()
        await server.until_health(503)
        status, body = await server.post("/v1/completions", {"prompt": [1]})
        assert (status, body["error"]["type"]) == (500, "InternalServerError")
        server.process.terminate()
        assert await server.exit_status() == 0
