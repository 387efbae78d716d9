"""What makes a server ready, and what a start looks like that will never be."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine import readiness
from optimizer.engine.readiness import prove, until_all_are_up, until_healthy, watch_start, whose_server
from optimizer.host.process_tree import tree_cpu_s

NONCE = "autotune-0123"
Handler = Callable[[web.Request], object]


@asynccontextmanager
async def serving(**handlers: Callable[[web.Request], web.Response]) -> AsyncIterator[EngineEndpoint]:
    """A server of this very process."""

    async def answer(request: web.Request) -> web.Response:
        return handlers[request.path.rpartition("/")[2]](request)

    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", answer)])
    async with TestServer(app) as server:
        yield EngineEndpoint(str(server.make_url("")).rstrip("/"), NONCE, vocab_size=2)


async def ask(check: Callable[[aiohttp.ClientSession], object]) -> Failure | None:
    async with aiohttp.ClientSession() as session:
        return await check(session)  # type: ignore[misc]


# --- /health


async def test_health_is_asked_until_it_is_200():
    answers = iter([503, 500, 200])
    async with serving(health=lambda _: web.Response(status=next(answers))) as endpoint:
        await asyncio.wait_for(ask(lambda session: until_healthy(session, endpoint)), 10)
    assert list(answers) == []


# --- several API servers


async def test_each_of_several_api_servers_is_waited_for(tmp_path):
    log = tmp_path / "engine.log"
    log.write_text("(APIServer_1 pid=7) INFO:     Application startup complete.\n")
    waiting = asyncio.create_task(until_all_are_up(log, 2))
    done, _ = await asyncio.wait({waiting}, timeout=2 * readiness._PROBE_EVERY_S)
    assert not done
    with log.open("a") as more:
        more.write("(APIServer_0 pid=6) INFO:     Application startup complete.\n")
    await asyncio.wait_for(waiting, 10)


@pytest.mark.parametrize(("text", "servers"), [("a level that hides it\n", 2), ("Application startup complete.", 1)])
async def test_a_log_that_tells_of_no_start_and_a_single_server_are_not_waited_for(tmp_path, text, servers):
    log = tmp_path / "engine.log"
    log.write_text(text)
    await asyncio.wait_for(until_all_are_up(log, servers), 10)


# --- whose server


def models(*names: str) -> web.Response:
    return web.json_response({"data": [{"id": name} for name in names]})


async def test_the_nonce_and_the_only_listener_make_a_server_ours():
    async with serving(models=lambda _: models(NONCE)) as endpoint:
        assert await ask(lambda session: whose_server(session, endpoint, pid=os.getpid())) is None


@pytest.mark.parametrize("served", [models(), models("theirs"), models(NONCE, "theirs"), web.Response(status=401)])
async def test_another_model_is_another_ones_server(served):
    async with serving(models=lambda _: served) as endpoint:
        failure = await ask(lambda session: whose_server(session, endpoint, pid=os.getpid()))
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.PORT_TAKEN, Blame.HOST, True)
    assert NONCE in failure.evidence[0]


async def test_the_nonce_from_a_process_outside_of_the_engine_is_not_enough():
    """Two that share a port answer in turns: the next connection may reach the other one."""
    async with program("input()") as other, serving(models=lambda _: models(NONCE)) as endpoint:
        failure = await ask(lambda session: whose_server(session, endpoint, pid=other))
    assert (failure.kind, failure.blame) == (FailureKind.PORT_TAKEN, Blame.HOST)
    assert f"listens on port {endpoint.port}" in failure.evidence[0]


# --- the first completion


def completion(tokens: object) -> web.Response:
    return web.json_response({"usage": {"completion_tokens": tokens}})


async def test_two_tokens_prove_an_engine():
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return completion(2)

    app = web.Application()
    app.add_routes([web.post("/v1/completions", answer)])
    async with TestServer(app) as server:
        endpoint = EngineEndpoint(str(server.make_url("")).rstrip("/"), NONCE, vocab_size=2)
        proof = await ask(lambda session: prove(session, endpoint, stage=Stage.LAUNCHING, limit_s=30))
    assert proof is None
    assert (asked[0]["model"], asked[0]["max_tokens"]) == (NONCE, 2)
    assert all(0 <= token < 2 for token in asked[0]["prompt"]), "a larger id than the vocabulary kills some releases"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (web.Response(status=500, text="EngineCore\n  died"), "HTTP 500: EngineCore died"),
        (web.Response(text="<html>"), "HTTP 200: <html>"),
        (completion(0), "HTTP 200"),
        (completion("two"), "HTTP 200"),
        (web.json_response([1]), "HTTP 200: [1]"),
    ],
)
async def test_any_other_answer_is_an_error_of_the_engine(answer, told):
    async with serving(completions=lambda _: answer) as endpoint:
        failure = await ask(lambda session: prove(session, endpoint, stage=Stage.LAUNCHING, limit_s=30))
    assert (failure.kind, failure.stage, failure.blame) == (FailureKind.ERROR_RATE, Stage.LAUNCHING, Blame.CONFIG)
    assert failure.evidence[0].startswith(told)


async def test_nobody_there_is_no_hang():
    endpoint = EngineEndpoint("http://127.0.0.1:9", NONCE)
    failure = await ask(lambda session: prove(session, endpoint, stage=Stage.MEASURING, limit_s=5))
    assert (failure.kind, failure.stage) == (FailureKind.ERROR_RATE, Stage.MEASURING)


async def test_no_answer_within_the_limit_is_a_hang():
    async def silent(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    app = web.Application()
    app.add_routes([web.post("/v1/completions", silent)])
    async with TestServer(app, handler_cancellation=True) as server:
        endpoint = EngineEndpoint(str(server.make_url("")).rstrip("/"), NONCE)
        failure = await ask(lambda session: prove(session, endpoint, stage=Stage.MEASURING, limit_s=0.2))
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.ENGINE_HANG, Blame.CONFIG, True)
    assert failure.facts["silent_s"] >= 0.2


# --- a start that gets on, or not

STALL_S = 0.6


@asynccontextmanager
async def program(code: str) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=asyncio.subprocess.PIPE)
    try:
        yield process.pid
    finally:
        process.kill()
        await process.wait()


async def test_neither_log_nor_cpu_is_a_hang_and_no_slow_start(tmp_path: Path):
    log = tmp_path / "engine.log"
    log.write_text("Initializing a V1 LLM engine\n")
    async with program("input()") as pid, asyncio.timeout(30):
        failure = await watch_start(pid, log, stall_s=STALL_S)
    assert (failure.kind, failure.stage, failure.blame) == (FailureKind.ENGINE_HANG, Stage.LAUNCHING, Blame.CONFIG)
    assert failure.retryable
    assert failure.evidence == ("Initializing a V1 LLM engine",)
    assert failure.facts["silent_s"] >= STALL_S


async def test_a_program_that_prints_nothing_and_hangs_is_told_all_the_same(tmp_path: Path):
    async with program("input()") as pid, asyncio.timeout(30):
        failure = await watch_start(pid, tmp_path / "engine.log", stall_s=STALL_S)
    assert (failure.kind, failure.evidence) == (FailureKind.ENGINE_HANG, ())


async def test_one_that_logs_gets_on(tmp_path: Path):
    log = tmp_path / "engine.log"
    log.touch()

    async def write() -> None:
        while True:
            with log.open("a") as file:
                file.write("Loading safetensors checkpoint shards\n")
            await asyncio.sleep(STALL_S / 10)

    async with program("input()") as pid:
        writing = asyncio.create_task(write())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch_start(pid, log, stall_s=STALL_S), 3 * STALL_S)
        writing.cancel()


async def test_one_that_computes_gets_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Compiling kernels may take minutes without a line of log. Here time passes only while the program computes."""
    monkeypatch.setattr(readiness, "LEAST_CPU_S", 0.02)
    async with program("while True: pass") as pid:
        watching = watch_start(pid, tmp_path / "engine.log", stall_s=STALL_S, now_s=lambda: tree_cpu_s(pid))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watching, 3 * STALL_S)
