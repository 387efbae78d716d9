"""A real HTTP server in this process that streams completions at known times, and misbehaves on request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from optimizer.core.endpoint import EngineEndpoint
from optimizer.load import Workload

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def chunk(usage: int | None, *, choices: bool = True, prompt_tokens: int = 3) -> bytes:
    body: dict[str, Any] = {"choices": [{"index": 0, "text": ""}] if choices else []}
    if usage is not None:
        body["usage"] = {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + usage,
            "completion_tokens": usage,
        }
    return f"data: {json.dumps(body)}\n\n".encode()


async def open_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    return response


class Answers:
    """Ways to answer a request for a completion."""

    DONE = b"data: [DONE]\n\n"
    chunk = staticmethod(chunk)

    @staticmethod
    def well_behaved(*, gap_s: float = 0.0, tokens_per_chunk: int = 1, continuous: bool = True) -> Answer:
        """Streams what is asked for, `tokens_per_chunk` at a time, with `gap_s` before each chunk."""

        async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            response = await open_stream(request)
            sent = 0
            while sent < body["max_tokens"]:
                await asyncio.sleep(gap_s)
                sent = min(body["max_tokens"], sent + tokens_per_chunk)
                await response.write(chunk(sent if continuous else None))
            await response.write(chunk(sent, choices=False, prompt_tokens=len(body["prompt"])) + Answers.DONE)
            return response

        return answer

    @staticmethod
    def raw(*pieces: bytes, content_type: str = "text/event-stream", status: int = 200) -> Answer:
        """Sends the given bytes, piece by piece, and ends."""

        async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            response = web.StreamResponse(status=status, headers={"Content-Type": content_type})
            await response.prepare(request)
            for piece in pieces:
                await response.write(piece)
                await asyncio.sleep(0)
            return response

        return answer

    @staticmethod
    async def hangs_up(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Sends one token, then cuts the connection."""
        response = await open_stream(request)
        await response.write(chunk(1))
        assert request.transport is not None
        request.transport.close()
        return response

    @staticmethod
    async def never_answers(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class FakeEngine:
    """Answers with `answer`, which a test may replace while it runs; keeps every request body it got."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.authorizations: list[str | None] = []
        self.under_way = 0
        self.changed = asyncio.Condition()
        self.most_under_way = 0
        self.connections: set[Any] = set()
        self.base_url = ""

    @property
    def endpoint(self) -> EngineEndpoint:
        return EngineEndpoint(self.base_url, "nonce", api_key="invented", vocab_size=512)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.paths.append(request.path)
        self.authorizations.append(request.headers.get("Authorization"))
        self.connections.add(request.transport.get_extra_info("peername") if request.transport else None)
        await self._count(+1)
        try:
            return await self.answer(request, body)
        finally:
            await self._count(-1)

    async def _count(self, step: int) -> None:
        self.under_way += step
        self.most_under_way = max(self.most_under_way, self.under_way)
        async with self.changed:
            self.changed.notify_all()

    async def until_under_way(self, requests: int) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(lambda: self.under_way == requests)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[FakeEngine]:
    engine = FakeEngine(answer)
    app = web.Application()
    app.router.add_post("/v1/completions", engine.handle)
    app.router.add_post("/v1/chat/completions", engine.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    engine.base_url = f"http://{host}:{port}"
    try:
        yield engine
    finally:
        await runner.cleanup()


Serving = Callable[[Answer], AbstractAsyncContextManager[FakeEngine]]


@pytest.fixture
def serve() -> Serving:
    """Opens an engine that answers as told."""
    return serving


@pytest.fixture
def answers() -> type[Answers]:
    """The ways to answer."""
    return Answers


@pytest.fixture
def make_workload() -> Callable[..., Workload]:
    """A small closed loop; keywords replace whole parts of it."""

    def make(**parts: Any) -> Workload:
        plain: dict[str, Any] = {
            "name": "test",
            "arrivals": {"kind": "closed_loop", "in_flight": 4},
            "prompt_tokens": {"kind": "uniform", "low": 4, "high": 8},
            "output_tokens": {"kind": "fixed", "tokens": 5},
            "warmup": {"requests": 6, "max_s": 5.0},
            "window": {"min_s": 0.2, "max_s": 3.0, "min_requests": 10},
        }
        return Workload.model_validate(plain | parts)

    return make
