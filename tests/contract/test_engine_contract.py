"""What an engine program must do to be tuned: held by vLLM and by the engine that stands in for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio

from optimizer.config import resolve_model
from optimizer.core.engine_config import EngineConfig, FlagValue
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.engine import launch as launch_module
from optimizer.engine.launch import (
    EngineFailed,
    EngineLauncher,
    EngineProcess,
    EngineProgram,
    warm_spare_command,
    warm_spare_environment,
)
from optimizer.host.cpus import split_cpus
from optimizer.host.memory import engine_memory_bytes
from optimizer.host.processes import identity_of, is_alive
from optimizer.host.supervisor import Supervisor
from optimizer.metrics.exposition import parse_exposition

GIB = 1024**3
START_LIMIT_S = 120.0
SPARE_LIMIT_S = 300.0
PROMPT = [10, 20, 30, 40, 50, 60, 70]
OUTPUT_TOKENS = 5
FLAGS: dict[str, FlagValue] = {
    "load-format": "dummy",
    "enforce-eager": True,
    "dtype": "float32",
    "max-model-len": 2048,
    "max-num-seqs": 8,
}

pytestmark = pytest.mark.asyncio(loop_scope="module")

Start = Callable[..., AbstractAsyncContextManager[EngineProcess]]


@dataclass(frozen=True)
class Engine:
    """An engine program under a guard.

    Attributes:
        memory_gib: With which it starts.
        too_little_gib: With which it does not, since no request of 16384 tokens fits.
    """

    launcher: EngineLauncher
    env: dict[str, str]
    memory_gib: float
    too_little_gib: float

    def flags(self, memory_gib: float | None = None, **more: FlagValue) -> dict[str, FlagValue]:
        share = (memory_gib or self.memory_gib) * GIB / engine_memory_bytes()
        return FLAGS | {"gpu-memory-utilization": share} | {name.replace("_", "-"): v for name, v in more.items()}


async def simulated(guard_log: Path) -> Engine:
    words = (sys.executable, "-m", "optimizer.engine.simulated")
    launcher = EngineLauncher(await Supervisor.start(log=guard_log), EngineProgram(head=words, display_head=words))
    env = {"AUTOTUNE_SIM_DEVICE_GIB": str(engine_memory_bytes() / GIB), "AUTOTUNE_SIM_SPEED": "20"}
    return Engine(launcher, env, memory_gib=1.2, too_little_gib=0.2)


async def vllm(guard_log: Path) -> Engine:
    cpus, env = split_cpus().engine, {"HF_HUB_OFFLINE": "1"}
    supervisor = await Supervisor.start(
        log=guard_log,
        command=warm_spare_command(sys.executable),
        env=warm_spare_environment(env, len(cpus)),
        limit_s=SPARE_LIMIT_S,
    )
    program = EngineProgram(head=(), display_head=("vllm", "serve"), cpus=cpus, cpu_threads=len(cpus))
    return Engine(EngineLauncher(supervisor, program), env, memory_gib=1.2, too_little_gib=0.9)


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[simulated, pytest.param(vllm, marks=[pytest.mark.e2e, pytest.mark.timeout(SPARE_LIMIT_S + START_LIMIT_S)])],
)
async def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """One guard for all tests of an engine: a warm spare takes its time to import vLLM."""
    made: Callable[[Path], Awaitable[Engine]] = request.param
    running = await made(tmp_path_factory.mktemp("guard") / "guard.log")
    yield running
    await running.launcher.close()


@pytest.fixture
def start(engine: Engine, tmp_path: Path) -> Start:
    """Launches the engine; it is stopped at the end of the block, with nothing left of it."""

    @asynccontextmanager
    async def starting(flags: dict[str, FlagValue] | None = None) -> AsyncIterator[EngineProcess]:
        model = resolve_model("tiny-kv", origin="test").target
        config = EngineConfig("any", model, flags or engine.flags(), engine.env)
        process = await engine.launcher.launch(config, log=tmp_path / "engine.log", marker="contract/0/1")
        try:
            yield process
        finally:
            assert (await process.stop()).left == ()

    return starting


async def refusal(process: EngineProcess) -> Failure:
    with pytest.raises(EngineFailed) as failed:
        await process.wait_ready(limit_s=START_LIMIT_S)
    return failed.value.failure


async def test_it_is_healthy_once_ready_and_serves_the_nonce_to_who_has_the_key(start):
    async with start() as process:
        facts = await process.wait_ready(limit_s=START_LIMIT_S)
        assert facts.kv_cache_tokens is not None
        assert facts.kv_cache_tokens >= 2048
        assert facts.max_concurrency is not None
        url, key = process.endpoint.base_url, process.endpoint.headers
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/health") as answer:
                assert answer.status == 200
            async with session.get(f"{url}/v1/models", headers=key) as answer:
                assert [model["id"] for model in (await answer.json())["data"]] == [process.endpoint.model]
            for wrong in ({}, {"Authorization": "Bearer wrong"}):
                async with session.get(f"{url}/v1/models", headers=wrong) as answer:
                    assert answer.status == 401
                async with session.post(f"{url}/v1/completions", headers=wrong, json={"prompt": [1]}) as answer:
                    assert answer.status == 401
        assert process.endpoint.api_key not in process.log_text()


async def test_a_completion_streams_its_tokens_and_usage_and_the_metrics_count_them(start):
    async with start() as process:
        facts = await process.wait_ready(limit_s=START_LIMIT_S)
        async with aiohttp.ClientSession(headers=process.endpoint.headers) as session:
            async with asyncio.timeout(30):
                # The completion that proved it ready is counted as well, with the next report of the engine's.
                before = await _metrics(session, process)
                while before.values["generation_tokens"] < 2:
                    before = await _metrics(session, process)
            events = await _completion_events(session, process)
            assert events[-1] == "[DONE]"
            *chunks, usage = [json.loads(event) for event in events[:-1]]
            assert usage["choices"] == []
            assert usage["usage"]["prompt_tokens"] == len(PROMPT)
            assert usage["usage"]["completion_tokens"] == OUTPUT_TOKENS
            assert sum(len(chunk["choices"][0]["token_ids"]) for chunk in chunks) == OUTPUT_TOKENS
            assert chunks[-1]["choices"][0]["finish_reason"] == "length"
            async with asyncio.timeout(30):
                reading = await _metrics(session, process)
                while reading.values["generation_tokens"] < 2 + OUTPUT_TOKENS:
                    reading = await _metrics(session, process)
        assert reading.values["generation_tokens"] == 2 + OUTPUT_TOKENS
        assert reading.values["prompt_tokens"] - before.values["prompt_tokens"] == len(PROMPT)
        assert reading.values["preemptions"] == 0
        assert {"running", "waiting", "kv_cache_usage", "prefix_queries", "prefix_hits"} <= set(reading.values)
        assert reading.kv_cache_tokens == facts.kv_cache_tokens
        assert await process.reset_prefix_cache()


async def _completion_events(session: aiohttp.ClientSession, process: EngineProcess) -> list[str]:
    body: dict[str, Any] = {
        "model": process.endpoint.model,
        "prompt": PROMPT,
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    async with session.post(f"{process.endpoint.base_url}/v1/completions", json=body) as answer:
        assert answer.status == 200
        text = await answer.text()
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


async def _metrics(session: aiohttp.ClientSession, process: EngineProcess):
    async with session.get(f"{process.endpoint.base_url}/metrics") as answer:
        assert answer.status == 200
        return parse_exposition(await answer.text())


async def test_an_unknown_flag_is_rejected(start, engine):
    async with start(engine.flags(bogus_flag=1)) as process:
        failure = await refusal(process)
    assert (failure.kind, failure.blame) == (FailureKind.REJECTED_FLAG, Blame.CONFIG)
    assert "--bogus-flag" in failure.detail
    assert failure.exit_code == 2


async def test_a_pool_without_room_for_one_request_is_too_small(start, engine):
    async with start(engine.flags(engine.too_little_gib, max_model_len=16384)) as process:
        failure = await refusal(process)
    assert (failure.kind, failure.blame) == (FailureKind.KV_CACHE_TOO_SMALL, Blame.CONFIG)
    assert failure.violation is not None
    assert failure.violation > 0
    assert failure.exit_code == 1


async def test_more_sequences_than_batched_tokens_do_not_go_together(start, engine):
    async with start(engine.flags(max_num_seqs=64, max_num_batched_tokens=32)) as process:
        failure = await refusal(process)
    assert (failure.kind, failure.blame) == (FailureKind.INVALID_COMBINATION, Blame.CONFIG)
    assert "max_num_batched_tokens (32)" in failure.detail
    assert "max_num_seqs (64)" in failure.detail
    assert failure.exit_code == 1


async def test_a_port_that_another_took_is_told_as_such(start, monkeypatch):
    with socket.socket() as occupant:
        occupant.bind(("127.0.0.1", 0))
        occupant.listen()
        monkeypatch.setattr(launch_module, "free_port", lambda _range: occupant.getsockname()[1])
        async with start() as process:
            failure = await refusal(process)
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.PORT_TAKEN, Blame.HOST, True)
    assert failure.exit_code == 1


async def test_sigterm_to_the_leader_leaves_no_process(start):
    async with start() as process:
        await process.wait_ready(limit_s=START_LIMIT_S)
        leader = psutil.Process(process.pid)
        members = [identity_of(one.pid) for one in (leader, *leader.children(recursive=True))]
        assert len(members) >= 2
        os.kill(process.pid, signal.SIGTERM)
        assert await process.ends_within(START_LIMIT_S)
        report = await process.stop()
    assert report.exit_code == 0
    assert not any(is_alive(member) for member in members)
