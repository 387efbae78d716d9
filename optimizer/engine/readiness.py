"""When an engine that starts is ready, and when it never will be.

Ready means three things in this order: `/health` answers 200, the model it serves bears our nonce and nobody else
listens on its port, and one small completion comes back. Whether it ends before is the business of its process; whether
it gets on at all is that of `watch_start`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine.engine_log import LogGrowth, read_log
from optimizer.engine.vllm.log_lines import last_lines
from optimizer.host.process_tree import strangers_listen, tree_cpu_s

START_STALL_S: Final = 60.0
"""A start that for so long neither logs anything nor computes hangs. Loading weights, compiling and capturing graphs
all use CPU, and download and loading write progress."""
LEAST_CPU_S: Final = 0.5
"""CPU time below which a process tree has done nothing in that time: event loops that wait use about a tenth of it."""
PROOF_LIMIT_S: Final = 120.0
"""For the first completion, which may still compile kernels."""
_PROBE_EVERY_S = 0.2
_PROBE_LIMIT_S = 5.0
_LOOK_EVERY_S = 1.0
_SERVER_IS_UP = "Application startup complete"
"""Uvicorn says so of each API server, before it listens."""


async def until_healthy(session: aiohttp.ClientSession, endpoint: EngineEndpoint) -> None:
    """Returns once `/health` says 200. Refused until the engine is up: vLLM binds its port at once and listens last."""
    while True:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            if await health(session, endpoint) == 200:
                return
        await asyncio.sleep(_PROBE_EVERY_S)


async def until_all_are_up(log: Path, servers: int) -> None:
    """Returns once as many API servers have said in the log that they are up; at once where the log tells of none.

    They start one by one, and the first answers `/health` seconds before the others take their share of the load.
    """
    while True:
        up = read_log(log).count(_SERVER_IS_UP)
        if up == 0 or up >= servers:
            return
        await asyncio.sleep(_PROBE_EVERY_S)


async def health(session: aiohttp.ClientSession, endpoint: EngineEndpoint) -> int:
    """The status of one `GET /health`: 200, or 503 once vLLM knows that its EngineCore is dead.

    Raises:
        aiohttp.ClientError: No answer.
        TimeoutError: None in 5 s, which a busy server may need.
    """
    limit = aiohttp.ClientTimeout(total=_PROBE_LIMIT_S)
    async with session.get(f"{endpoint.base_url}/health", timeout=limit) as answer:
        return answer.status


async def whose_server(session: aiohttp.ClientSession, endpoint: EngineEndpoint, *, pid: int) -> Failure | None:
    """None when the server that answers is the one of `pid`; else the failure of a port that another one took."""
    try:
        async with session.get(f"{endpoint.base_url}/v1/models") as answer:
            served = [model["id"] for model in (await answer.json())["data"]]
    except (aiohttp.ClientError, ValueError, KeyError, TypeError) as error:
        served = [f"no model list: {error}"]
    if served != [endpoint.model]:
        evidence = f"it serves {served}, ours would serve {endpoint.model}"
    elif strangers_listen(pid, endpoint.port):
        evidence = f"a process that is not the engine's listens on port {endpoint.port} too"
    else:
        return None
    return Failure(
        kind=FailureKind.PORT_TAKEN,
        stage=Stage.LAUNCHING,
        blame=Blame.HOST,
        detail=f"the server on {endpoint.base_url} is not the one we launched",
        evidence=(evidence,),
        retryable=True,
    )


async def prove(
    session: aiohttp.ClientSession, endpoint: EngineEndpoint, *, stage: Stage, limit_s: float
) -> Failure | None:
    """Ask for a completion of two tokens.

    Returns:
        None when they came. ENGINE_HANG when nothing came within the limit, ERROR_RATE for any other answer; neither
        knows whether the engine is about to end, which explains it better.
    """
    begun_s = time.monotonic()
    try:
        async with session.post(
            f"{endpoint.base_url}/v1/completions",
            json=_smallest_request(endpoint),
            timeout=aiohttp.ClientTimeout(total=limit_s),
        ) as answer:
            said = await answer.text(errors="replace")
            if answer.status == 200 and _completion_tokens(said) > 0:
                return None
            problem = f"HTTP {answer.status}: {' '.join(said.split())[:300]}"
    except TimeoutError:
        return _hang(
            stage,
            f"one completion of two tokens was not answered within {limit_s:.0f} s",
            (),
            silent_s=time.monotonic() - begun_s,
        )
    except aiohttp.ClientError as error:
        problem = f"{type(error).__name__}: {error}"
    return Failure(
        kind=FailureKind.ERROR_RATE,
        stage=stage,
        blame=Blame.CONFIG,
        detail="the engine is ready and does not answer one small completion",
        evidence=(problem,),
        retryable=True,
    )


async def watch_start(pid: int, log: Path, *, stall_s: float, now_s: Callable[[], float] = time.monotonic) -> Failure:
    """Looks at log and CPU time of an engine that starts, for as long as there is progress.

    Args:
        pid: Of its leader.
        log: Where it writes to.
        stall_s: How long both may stand still.
        now_s: The clock.

    Returns:
        The hang, once there was none.
    """
    growth, cpu_s, progress_s = LogGrowth(log), tree_cpu_s(pid), now_s()
    silent_s = 0.0
    while silent_s < stall_s:
        await asyncio.sleep(min(_LOOK_EVERY_S, stall_s / 4))
        used_s = tree_cpu_s(pid)
        if growth.has_news() or abs(used_s - cpu_s) > LEAST_CPU_S:
            cpu_s, progress_s = used_s, now_s()
        else:
            silent_s = now_s() - progress_s
    return _hang(
        Stage.LAUNCHING,
        f"the start got stuck: for {silent_s:.0f} s it logged nothing and used at most {LEAST_CPU_S} s of CPU",
        last_lines(read_log(log)),
        silent_s=silent_s,
    )


def start_timeout(log: Path, limit_s: float) -> Failure:
    """The failure of a start that was still under way at its deadline."""
    return Failure(
        kind=FailureKind.STARTUP_TIMEOUT,
        stage=Stage.LAUNCHING,
        blame=Blame.CONFIG,
        detail=f"the engine was not ready within {limit_s:.0f} s",
        evidence=last_lines(read_log(log)),
        facts={"limit_s": limit_s},
    )


def _hang(stage: Stage, detail: str, evidence: tuple[str, ...], *, silent_s: float) -> Failure:
    return Failure(
        kind=FailureKind.ENGINE_HANG,
        stage=stage,
        blame=Blame.CONFIG,
        detail=detail,
        evidence=evidence,
        retryable=True,
        facts={"silent_s": round(silent_s, 1)},
    )


def _smallest_request(endpoint: EngineEndpoint) -> dict[str, Any]:
    last = endpoint.vocab_size - 1
    return {
        "model": endpoint.model,
        "prompt": [min(1, last), min(2, last)],
        "max_tokens": 2,
        "ignore_eos": True,
        "temperature": 0,
    }


def _completion_tokens(body: str) -> int:
    """Tokens that an answer says it has; 0 for one that is no completion."""
    try:
        return int(json.loads(body)["usage"]["completion_tokens"])
    except (ValueError, KeyError, TypeError):
        return 0
