"""A simulated engine through the launcher: ready and ours, watched while it serves, and gone when it was stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import BaseTestServer, TestServer

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.errors import HostError
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine import launch as launch_module
from optimizer.engine.launch import EngineFailed, EngineLauncher, EngineProcess, EngineProgram
from optimizer.host.processes import is_alive
from optimizer.host.supervisor import Supervisor
from tests.integration.supervision.helpers import LIMIT_S, PATIENT_GUARD, SIMULATED, family, launching, logged


async def failure_of(engine: EngineProcess, *, limit_s: float = LIMIT_S) -> Failure:
    with pytest.raises(EngineFailed) as failed:
        await engine.wait_ready(limit_s=limit_s)
    return failed.value.failure


@pytest_asyncio.fixture
async def foreign() -> AsyncIterator[BaseTestServer]:
    """A server that is healthy and serves a model, but not ours."""

    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "somebody-elses"}]})

    async def health(_request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/health", health), web.get("/v1/models", models)])
    async with TestServer(app) as server:
        yield server


async def test_a_launched_engine_is_ready_ours_and_stops_without_a_trace(launch):
    engine = await launch()
    facts = await engine.wait_ready(limit_s=LIMIT_S)
    assert facts.kv_cache_tokens is not None
    assert facts.kv_cache_tokens > 0
    members = family(engine.pid)
    assert len(members) == 2
    async with aiohttp.ClientSession(engine.endpoint.base_url) as stranger, stranger.get("/v1/models") as answer:
        assert answer.status == 401
    assert await engine.reset_prefix_cache()
    report = await engine.stop()
    assert (report.exit_code, report.killed, report.left) == (0, (), ())
    assert not any(is_alive(member) for member in members)


async def test_the_key_is_in_no_argv_and_no_log_and_all_launches_share_it(launch):
    """vLLM 0.26 compiles anew for a new key; what tells one launch from another is the served model name."""
    engine = await launch()
    await engine.wait_ready(limit_s=LIMIT_S)
    await engine.stop()
    other = await launch()
    key = engine.endpoint.api_key
    assert key is not None
    assert not any(key in word for word in engine.argv)
    assert key not in engine.log_text()
    assert key not in repr(engine.endpoint)
    assert key == other.endpoint.api_key
    assert engine.endpoint.model != other.endpoint.model


@pytest.mark.parametrize(
    ("faults", "flags", "kind"),
    [
        (["port_taken"], {}, FailureKind.PORT_TAKEN),
        (["kv_too_small"], {}, FailureKind.KV_CACHE_TOO_SMALL),
        (["oom_loading"], {}, FailureKind.OUT_OF_MEMORY),
        (["die_loading"], {}, FailureKind.UNKNOWN),
        ([], {"bogus": 1}, FailureKind.REJECTED_FLAG),
        ([], {"max-num-seqs": 64, "max-num-batched-tokens": 32}, FailureKind.INVALID_COMBINATION),
    ],
)
async def test_an_engine_that_ends_at_once_is_classified_from_its_log(launch, faults, flags, kind):
    engine = await launch(faults, flags)
    failure = await failure_of(engine)
    assert failure.kind is kind
    assert failure.exit_code == (2 if kind is FailureKind.REJECTED_FLAG else 1)
    assert failure.evidence
    report = await engine.stop()
    assert (report.exit_code, report.left) == (failure.exit_code, ())


async def test_an_engine_that_is_never_ready_runs_out_of_time(launch):
    engine = await launch(["never_ready"])
    await logged(engine.log, "Initializing a V1 LLM engine")
    failure = await failure_of(engine, limit_s=0.3)
    assert (failure.kind, failure.blame) == (FailureKind.STARTUP_TIMEOUT, Blame.CONFIG)
    assert any("Initializing a V1 LLM engine" in line for line in failure.evidence)
    members = family(engine.pid)
    await engine.stop()
    assert not any(is_alive(member) for member in members)


async def test_waiting_can_be_cancelled_and_the_engine_stopped_after_it(launch):
    engine = await launch(["never_ready"])
    waiting = asyncio.create_task(engine.wait_ready(limit_s=LIMIT_S))
    await logged(engine.log, "Initializing a V1 LLM engine")
    members = family(engine.pid)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await engine.stop()).left == ()
    assert not any(is_alive(member) for member in members)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert {task.get_name() for task in others} == {"guard-reader"}


async def test_a_foreign_server_on_its_port_is_told_from_ours(launch, monkeypatch, foreign):
    monkeypatch.setattr(launch_module, "free_port", lambda _range: foreign.port)
    failure = await failure_of(await launch())
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.PORT_TAKEN, Blame.HOST, True)


async def test_a_foreign_server_is_not_ours_though_our_engine_lives(launch, foreign):
    engine = await launch(["never_ready"])
    engine.endpoint = EngineEndpoint(str(foreign.make_url("")).rstrip("/"), engine.endpoint.model, "key")
    failure = await failure_of(engine)
    assert (failure.kind, failure.blame) == (FailureKind.PORT_TAKEN, Blame.HOST)
    assert "somebody-elses" in failure.evidence[0]
    assert engine.endpoint.model in failure.evidence[0]


@pytest.mark.parametrize(
    "models",
    [
        web.Response(text="<html>", content_type="text/html"),
        web.Response(status=404),
        web.json_response({"error": "Unauthorized"}, status=401),
        web.json_response(["not", "a", "dict"]),
        web.json_response({"data": [{"name": "no id"}]}),
    ],
)
async def test_whatever_a_foreign_server_says_of_its_models_it_is_not_ours(launch, models):
    async def health(_request: web.Request) -> web.Response:
        return web.Response()

    async def list_models(_request: web.Request) -> web.Response:
        return models

    app = web.Application()
    app.add_routes([web.get("/health", health), web.get("/v1/models", list_models)])
    engine = await launch(["never_ready"])
    async with TestServer(app) as server:
        engine.endpoint = EngineEndpoint(str(server.make_url("")).rstrip("/"), engine.endpoint.model, "key")
        assert (await failure_of(engine)).kind is FailureKind.PORT_TAKEN


async def test_a_range_of_ports_that_is_taken_launches_nothing(supervisor, tmp_path, foreign):
    program = EngineProgram(head=SIMULATED, display_head=SIMULATED)
    launcher = EngineLauncher(supervisor, program, port_range=(foreign.port, foreign.port))
    with pytest.raises(HostError, match=f"ports {foreign.port}-{foreign.port}"):
        await launching(supervisor, tmp_path, launcher=launcher)()


async def test_a_program_that_does_not_exist_is_a_fault_of_the_host(supervisor, tmp_path):
    launch = launching(supervisor, tmp_path, head=(str(tmp_path / "absent"),))
    with pytest.raises(HostError, match="program cannot be started"):
        await launch()


async def test_an_engine_deaf_to_sigterm_is_killed(launch, short_grace):
    engine = await launch(["ignore_sigterm"])
    await engine.wait_ready(limit_s=LIMIT_S)
    members = family(engine.pid)
    report = await engine.stop()
    assert report.exit_code == -signal.SIGKILL
    assert set(report.killed) == {member.pid for member in members}
    assert report.left == ()
    assert not any(is_alive(member) for member in members)


async def test_a_core_that_left_the_group_is_swept(launch, short_grace):
    engine = await launch(["escape_group", "ignore_sigterm"])
    await engine.wait_ready(limit_s=LIMIT_S)
    leader, core = family(engine.pid)
    assert os.getsid(core.pid) != os.getsid(leader.pid)
    assert core.pid in (await engine.stop()).killed
    assert not is_alive(core)


@pytest.mark.parametrize("guard_command", [PATIENT_GUARD], ids=["patient"])
async def test_a_core_whose_api_server_was_killed_is_swept(launch):
    engine = await launch()
    await engine.wait_ready(limit_s=LIMIT_S)
    leader, core = family(engine.pid)
    os.kill(leader.pid, signal.SIGKILL)
    assert await engine.ends_within(LIMIT_S)
    assert is_alive(core)
    report = await engine.stop()
    assert (report.exit_code, report.killed, report.left) == (-signal.SIGKILL, (), ())
    assert report.term_s < launch_module._STOP_GRACE_S / 2, "a core without its server is not waited for"
    assert not is_alive(core)


async def test_the_end_of_an_engine_cancels_the_work_on_it(launch):
    engine = await launch([{"fault": "oom_under_load", "after_requests": 1}])
    await engine.wait_ready(limit_s=LIMIT_S)
    ended = asyncio.Event()

    async def endless() -> None:
        try:
            async with aiohttp.ClientSession(headers=engine.endpoint.headers) as session:
                body = {"model": engine.endpoint.model, "prompt": [1, 2], "max_tokens": 50}
                async with session.post(f"{engine.endpoint.base_url}/v1/completions", json=body):
                    await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(EngineFailed) as failed:
        await engine.unless_it_ends(endless(), Stage.MEASURING)
    assert ended.is_set()
    assert failed.value.failure.kind is FailureKind.OUT_OF_MEMORY
    assert failed.value.failure.stage is Stage.MEASURING
    assert failed.value.failure.exit_code == 0


async def test_work_that_is_done_or_fails_first_is_passed_through(launch):
    engine = await launch(["never_ready"])

    async def work(fails: bool) -> int:
        return 1 // (0 if fails else 1)

    assert await engine.unless_it_ends(work(False), Stage.MEASURING) == 1
    with pytest.raises(ZeroDivisionError):
        await engine.unless_it_ends(work(True), Stage.MEASURING)
    assert not await engine.ends_within(0.01)


async def test_two_engines_follow_each_other_under_one_guard(launch):
    seen = []
    for _ in range(2):
        engine = await launch()
        await engine.wait_ready(limit_s=LIMIT_S)
        seen.append(engine.endpoint.model)
        assert (await engine.stop()).left == ()
    assert len(set(seen)) == 2


async def test_a_log_is_read_whatever_its_bytes(launch):
    engine = await launch(["never_ready"])
    await engine.stop()
    engine.log.write_bytes(b"first\n" + b"\xff\xfe" * 150_000 + b"\nlast\n")
    text = engine.log_text()
    assert text.startswith("first\n")
    assert text.endswith("\nlast\n")
    engine.log.unlink()
    assert engine.log_text() == ""


async def test_close_with_a_serving_engine_leaves_nothing(guard_log, tmp_path):
    supervisor = await Supervisor.start(log=guard_log)
    engine = await launching(supervisor, tmp_path)(["ignore_sigterm", "escape_group"])
    await engine.wait_ready(limit_s=LIMIT_S)
    members = family(engine.pid)
    begun = time.monotonic()
    await supervisor.close()
    assert time.monotonic() - begun < 10.0
    assert not any(is_alive(member) for member in members)
