"""Whether an engine under load works or hangs: what counts as work, and how long it may stand still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine import launch
from optimizer.engine.launch import EngineFailed, EngineProcess
from optimizer.load.completion import RequestTrace
from optimizer.tuning.liveness import PAUSE_FACTOR, WARM_UP_FACTOR, TokenWatch
from tests.unit.tuning.fake_process import FakeProcess

HANG_S = 0.2
PAGE = """\
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total {tokens}
vllm:kv_cache_usage_perc {kv}
"""


@dataclass
class Server:
    """Answers `/health` and `/metrics` as told."""

    health: int = 200
    page: Callable[[], str] = field(default=lambda: PAGE.format(tokens=7, kv=0.5))
    port: int = 0

    async def say_health(self, _request: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def say_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.page())


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    told = Server()
    app = web.Application()
    app.add_routes([web.get("/health", told.say_health), web.get("/metrics", told.say_metrics)])
    async with TestServer(app) as running:
        told.port = running.port or 0
        yield told


@pytest_asyncio.fixture
async def engine(server: Server, tmp_path: Path) -> EngineProcess:
    log = tmp_path / "engine.log"
    log.write_text("the last line\n")
    return EngineProcess(FakeProcess(), EngineEndpoint(f"http://127.0.0.1:{server.port}", "nonce"), (), log)


def request(*, sent: bool = True) -> RequestTrace:
    now_s = time.monotonic()
    return RequestTrace(now_s, 4, 100, sent_s=now_s if sent else None)


async def hangs(watch: TokenWatch, traces: list[RequestTrace], stage: Stage = Stage.MEASURING) -> Failure:
    async with asyncio.timeout(20):
        with pytest.raises(EngineFailed) as failed:
            await watch.until_stuck(stage, traces)
    return failed.value.failure


async def lives(watch: TokenWatch, traces: list[RequestTrace], for_s: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(for_s):
            await watch.until_stuck(Stage.MEASURING, traces)


async def test_requests_that_run_and_get_no_token_are_a_hang_of_the_setting(engine):
    begun_s = time.monotonic()
    failure = await hangs(TokenWatch(engine, hang_s=HANG_S), [request(), request(), request(sent=False)])
    assert HANG_S <= time.monotonic() - begun_s < 20 * HANG_S
    assert (failure.kind, failure.stage, failure.blame) == (FailureKind.ENGINE_HANG, Stage.MEASURING, Blame.CONFIG)
    assert failure.retryable
    assert failure.facts["running_requests"] == 2
    assert failure.facts["engine_generation_tokens"] == 7
    assert failure.facts["silent_s"] >= HANG_S
    assert failure.evidence == ("the last line",)
    assert "2 requests ran" in failure.detail


async def test_tokens_that_come_are_work(engine):
    trace = request()

    async def answer() -> None:
        while True:
            trace.arrivals.append((time.monotonic(), 1))
            await asyncio.sleep(HANG_S / 10)

    answering = asyncio.create_task(answer())
    await lives(TokenWatch(engine, hang_s=HANG_S), [trace], 5 * HANG_S)
    answering.cancel()


async def test_requests_that_end_are_work_however_they_end(engine):
    """Errors are counted by the load, which gives up on its own; an engine that refuses does not hang."""
    traces: list[RequestTrace] = [request()]

    async def refuse() -> None:
        while True:
            traces[-1].ended_s, traces[-1].error = time.monotonic(), "HTTP 500"
            traces.append(request())
            await asyncio.sleep(HANG_S / 10)

    refusing = asyncio.create_task(refuse())
    await lives(TokenWatch(engine, hang_s=HANG_S), traces, 5 * HANG_S)
    refusing.cancel()


@pytest.mark.parametrize("traces", [[], [request(sent=False)]])
async def test_without_requests_nothing_is_missed(engine, traces):
    await lives(TokenWatch(engine, hang_s=HANG_S), traces, 5 * HANG_S)


@pytest.mark.parametrize("moving", ["tokens", "kv"])
async def test_counters_of_the_engine_that_move_are_work(engine, server, moving):
    """A prefill of a long prompt yields no token for a while; the KV pool fills meanwhile."""
    numbers = {"tokens": 0, "kv": 0}

    def page() -> str:
        numbers[moving] += 1
        return PAGE.format(**numbers)

    server.page = page
    await lives(TokenWatch(engine, hang_s=HANG_S), [request()], 5 * HANG_S)


async def test_metrics_that_are_garbage_hide_no_hang(engine, server):
    server.page = lambda: "\x00 nothing of the kind"
    failure = await hangs(TokenWatch(engine, hang_s=HANG_S), [request()])
    assert failure.kind is FailureKind.ENGINE_HANG
    assert "/metrics cannot be read" in failure.detail


async def test_one_health_that_fails_is_no_death(engine, server, monkeypatch):
    """A busy server may say anything once: only tokens that stay away, or 503 that stays, end a trial."""
    monkeypatch.setattr(launch, "_END_SEEN_S", 0.01)
    server.health = 500
    assert (await hangs(TokenWatch(engine, hang_s=HANG_S), [request()])).kind is FailureKind.ENGINE_HANG


async def test_a_dead_core_behind_a_server_that_lives_is_told_from_a_hang(engine, server, monkeypatch):
    monkeypatch.setattr(launch, "_END_SEEN_S", 0.01)
    server.health = 503
    engine.log.write_text("(EngineCore pid=2) ERROR 11-29 18:50:31 [core.py:1] EngineCore encountered a fatal error.\n")
    failure = await hangs(TokenWatch(engine, hang_s=HANG_S), [request()])
    assert (failure.kind, failure.exit_code) == (FailureKind.ENGINE_CRASH, None)


async def test_an_engine_that_paused_before_may_pause_for_longer(engine):
    watch = TokenWatch(engine, hang_s=HANG_S)
    trace = request()
    watching = asyncio.create_task(hangs(watch, [trace]))
    await asyncio.sleep(HANG_S * 0.8)
    trace.arrivals.append((time.monotonic(), 1))
    failure = await watching
    assert failure.facts["limit_s"] > 2 * HANG_S
    assert failure.facts["limit_s"] <= PAUSE_FACTOR * HANG_S
    assert watch.limit_s(Stage.MEASURING) == failure.facts["limit_s"]


def test_a_warm_up_may_still_compile(engine):
    watch = TokenWatch(engine, hang_s=30.0)
    assert watch.limit_s(Stage.MEASURING) == 30.0
    assert watch.limit_s(Stage.WARMING_UP) == WARM_UP_FACTOR * 30.0
