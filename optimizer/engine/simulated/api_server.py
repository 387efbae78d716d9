"""The HTTP side: vLLM's endpoints over one EngineCore."""

from __future__ import annotations

import asyncio
import secrets
import uuid

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from optimizer.engine.simulated.answers import Answer
from optimizer.engine.simulated.companions import FOREIGN_MODEL
from optimizer.engine.simulated.core_client import CoreClient
from optimizer.engine.simulated.fault_script import FaultWatch
from optimizer.engine.simulated.faults import Fault
from optimizer.engine.simulated.generation_request import ApiError, Endpoint, parse_request
from optimizer.engine.simulated.prometheus import render_metrics
from optimizer.engine.simulated.settings import EngineSettings
from optimizer.engine.simulated.streaming import error_response, manner_of, stream_answer, whole_answer

VERSION = "0.32.0+simulated"
"""The vLLM version whose surface this copies."""

_MAX_BODY_BYTES = 2**26
_GARBAGE = b"\x00\xff<html>502 Bad Gateway</html>\nvllm:num_requests_running{ NaN NaN\n"
_HTML = "<html><head><title>Welcome</title></head><body><h1>It works!</h1></body></html>\n"


def build_app(settings: EngineSettings, client: CoreClient, faults: FaultWatch) -> web.Application:
    """The application; `/reset_prefix_cache` is there only in dev mode, as in vLLM."""
    server = _ApiServer(settings, client, faults)
    app = web.Application(middlewares=[_bearer_guard(settings.api_keys)], client_max_size=_MAX_BODY_BYTES)
    app.add_routes(
        [
            web.get("/health", server.health),
            web.get("/ping", server.health),
            web.get("/version", server.version),
            web.get("/metrics", server.metrics),
            web.get("/v1/models", server.models),
            web.post("/v1/completions", server.completions),
            web.post("/v1/chat/completions", server.chat_completions),
        ]
    )
    if settings.dev_mode:
        app.router.add_post("/reset_prefix_cache", server.reset_prefix_cache)
    return app


def _bearer_guard(api_keys: tuple[str, ...]) -> Middleware:
    accepted = [f"Bearer {key}".encode() for key in api_keys]

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        sent = request.headers.get("Authorization", "").encode()
        if accepted and request.path.startswith("/v1") and not any(secrets.compare_digest(sent, a) for a in accepted):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    return guard


class _ApiServer:
    """The handlers."""

    def __init__(self, settings: EngineSettings, client: CoreClient, faults: FaultWatch) -> None:
        self._settings = settings
        self._client = client
        self._faults = faults
        self._burst_done = {Fault.HTTP_500_BURST: 0, Fault.HTTP_503_BURST: 0}

    async def health(self, _request: web.Request) -> web.Response:
        if self._faults.due(Fault.SLOW_HEALTH):
            await asyncio.sleep(self._faults.amount(Fault.SLOW_HEALTH))
        return web.Response(status=503 if self._client.dead.is_set() else 200)

    async def version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def metrics(self, _request: web.Request) -> web.Response:
        if self._faults.due(Fault.GARBAGE_METRICS):
            return web.Response(body=_GARBAGE, content_type="text/plain")
        text = render_metrics(
            self._settings,
            self._client.plan,
            self._client.stats,
            self._client.times.histograms,
            without=self._faults.names(Fault.MISSING_METRIC),
        )
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def models(self, _request: web.Request) -> web.Response:
        cards = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "vllm",
                "root": self._settings.model,
                "parent": None,
                "max_model_len": self._client.plan.max_model_len,
            }
            for name in self._model_names()
        ]
        return web.json_response({"object": "list", "data": cards})

    async def reset_prefix_cache(self, _request: web.Request) -> web.Response:
        return web.json_response({"success": await self._client.reset_prefix_cache()})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "completion")

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def _generate(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        self._faults.note_request()
        scripted = self._scripted_answer()
        if scripted is not None:
            return scripted
        try:
            body = await request.json()
        except ValueError:
            return error_response(ApiError(400, "BadRequestError", "the body is not JSON"))
        parsed = parse_request(body, endpoint, self._settings, self._client.plan.max_model_len, self._model_names())
        if isinstance(parsed, ApiError):
            return error_response(parsed)
        prefix = "chatcmpl" if endpoint == "chat" else "cmpl"
        answer = Answer(f"{prefix}-{uuid.uuid4().hex}", parsed, with_text=not self._settings.skip_tokenizer_init)
        manner = manner_of(answer, self._settings.stream_interval, self._faults)
        max_tokens = parsed.max_tokens
        if self._faults.due(Fault.SHORT_ANSWER):
            max_tokens = max(1, int(max_tokens * self._faults.amount(Fault.SHORT_ANSWER)))
            answer.finish_reason = "stop"
        with self._client.generate(answer.request_id, parsed.prompt, max_tokens, parsed.cache_salt) as generation:
            if parsed.stream:
                return await stream_answer(request, generation, answer, manner)
            return await whole_answer(generation, answer)

    def _scripted_answer(self) -> web.Response | None:
        """What a fault answers in place of the engine."""
        if self._faults.due(Fault.HTML_ANSWER):
            return web.Response(text=_HTML, content_type="text/html")
        for fault, status, kind in (
            (Fault.HTTP_500_BURST, 500, "InternalServerError"),
            (Fault.HTTP_503_BURST, 503, "ServiceUnavailableError"),
        ):
            if self._faults.due(fault) and self._burst_done[fault] < self._faults.amount(fault):
                self._burst_done[fault] += 1
                return error_response(ApiError(status, kind, f"scripted fault {fault.value}"))
        return None

    def _model_names(self) -> tuple[str, ...]:
        """The names it answers to."""
        return (FOREIGN_MODEL,) if self._faults.due(Fault.FOREIGN_MODEL) else self._settings.served_model_names
