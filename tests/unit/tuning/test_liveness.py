"""Whether an engine under load works or hangs: what counts as work, and how long it may stand still."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
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
from tests.gpu.fake_nvml import FakeClock
from tests.unit.tuning.fake_process import FakeProcess

HANG_S = 4.0
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


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def watch(engine: EngineProcess, clock: FakeClock) -> TokenWatch:
    return TokenWatch(engine, hang_s=HANG_S, now_s=clock.now_s, sleep=clock.sleep)


def request(at_s: float = 0.0, *, sent: bool = True) -> RequestTrace:
    return RequestTrace(at_s, 4, 100, sent_s=at_s if sent else None)


async def hangs(watch: TokenWatch, traces: list[RequestTrace]) -> Failure:
    with pytest.raises(EngineFailed) as failed:
        await watch.until_stuck(Stage.MEASURING, traces)
    return failed.value.failure


class Enough(Exception):
    """The engine was watched for five times what a hang takes."""


async def lives(watch: TokenWatch, clock: FakeClock, traces: list[RequestTrace]) -> None:
    def enough() -> None:
        raise Enough

    clock.at(5 * HANG_S, enough)
    with pytest.raises(Enough):
        await watch.until_stuck(Stage.MEASURING, traces)


def often() -> list[float]:
    """Times for as long as `lives` watches."""
    return [step * HANG_S / 10 for step in range(1, 50)]


async def test_requests_that_run_and_get_no_token_are_a_hang_of_the_setting(watch, clock):
    failure = await hangs(watch, [request(), request(), request(sent=False)])
    assert HANG_S <= clock.now < 2 * HANG_S
    assert (failure.kind, failure.stage, failure.blame) == (FailureKind.ENGINE_HANG, Stage.MEASURING, Blame.CONFIG)
    assert failure.retryable
    assert failure.facts["running_requests"] == 2
    assert failure.facts["engine_generation_tokens"] == 7
    assert failure.facts["silent_s"] >= HANG_S
    assert failure.evidence == ("the last line",)
    assert "2 requests ran" in failure.detail


async def test_tokens_that_come_are_work(watch, clock):
    trace = request()
    for at_s in often():
        clock.at(at_s, partial(trace.arrivals.append, (at_s, 1)))
    await lives(watch, clock, [trace])


async def test_requests_that_end_are_work_however_they_end(watch, clock):
    """Errors are counted by the load, which gives up on its own; an engine that refuses does not hang."""
    traces: list[RequestTrace] = [request()]

    def refuse(at_s: float) -> None:
        traces[-1].ended_s, traces[-1].error = at_s, "HTTP 500"
        traces.append(request(at_s))

    for at_s in often():
        clock.at(at_s, partial(refuse, at_s))
    await lives(watch, clock, traces)


@pytest.mark.parametrize("unsent", [0, 1])
async def test_without_requests_nothing_is_missed(watch, clock, unsent):
    await lives(watch, clock, [request(sent=False)] * unsent)


@pytest.mark.parametrize("moving", ["tokens", "kv"])
async def test_counters_of_the_engine_that_move_are_work(watch, clock, server, moving):
    """A prefill of a long prompt yields no token for a while; the KV pool fills meanwhile."""
    numbers = {"tokens": 0, "kv": 0}

    def page() -> str:
        numbers[moving] += 1
        return PAGE.format(**numbers)

    server.page = page
    await lives(watch, clock, [request()])


async def test_metrics_that_are_garbage_hide_no_hang(watch, server):
    server.page = lambda: "\x00 nothing of the kind"
    failure = await hangs(watch, [request()])
    assert failure.kind is FailureKind.ENGINE_HANG
    assert "/metrics cannot be read" in failure.detail


async def test_one_health_that_fails_is_no_death(watch, server, monkeypatch):
    """A busy server may say anything once: only tokens that stay away, or 503 that stays, end a trial."""
    monkeypatch.setattr(launch, "_END_SEEN_S", 0.01)
    server.health = 500
    assert (await hangs(watch, [request()])).kind is FailureKind.ENGINE_HANG


async def test_a_dead_core_behind_a_server_that_lives_is_told_from_a_hang(watch, engine, server, monkeypatch):
    monkeypatch.setattr(launch, "_END_SEEN_S", 0.01)
    server.health = 503
    engine.log.write_text("(EngineCore pid=2) ERROR 11-29 18:50:31 [core.py:1] EngineCore encountered a fatal error.\n")
    failure = await hangs(watch, [request()])
    assert (failure.kind, failure.exit_code) == (FailureKind.ENGINE_CRASH, None)


async def test_an_engine_that_paused_before_may_pause_for_longer(watch, clock):
    trace = request()
    clock.at(0.8 * HANG_S, lambda: trace.arrivals.append((0.8 * HANG_S, 1)))
    failure = await hangs(watch, [trace])
    assert failure.facts["limit_s"] > 2 * HANG_S
    assert failure.facts["limit_s"] <= PAUSE_FACTOR * HANG_S
    assert watch.limit_s(Stage.MEASURING) == failure.facts["limit_s"]


def test_a_warm_up_may_still_compile(engine):
    watch = TokenWatch(engine, hang_s=30.0)
    assert watch.limit_s(Stage.MEASURING) == 30.0
    assert watch.limit_s(Stage.WARMING_UP) == WARM_UP_FACTOR * 30.0
