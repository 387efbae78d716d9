"""The HTTP side: vLLM's endpoints over one EngineCore."""

from __future__ import annotations

import json
import secrets
import uuid

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from optimizer.engine.simulated.answers import Answer
from optimizer.engine.simulated.core_client import CoreClient, Generation
from optimizer.engine.simulated.faults import BURST_REQUESTS, Fault, FaultWatch
from optimizer.engine.simulated.generation_request import ApiError, Endpoint, GenerationRequest, parse_request
from optimizer.engine.simulated.prometheus import render_metrics
from optimizer.engine.simulated.settings import EngineSettings
from optimizer.engine.simulated.vllm_log import ENGINE_DEAD

VERSION = "0.32.0+simulated"
"""The vLLM version whose surface this copies."""

_MAX_BODY_BYTES = 2**26
_GARBAGE = b"\x00\xff<html>502 Bad Gateway</html>\nvllm:num_requests_running{ NaN NaN\n"
_ENGINE_IS_DEAD = ApiError(500, "InternalServerError", ENGINE_DEAD)


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
        self._burst_left = {500: BURST_REQUESTS, 503: BURST_REQUESTS}

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response(status=503 if self._client.dead.is_set() else 200)

    async def version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def metrics(self, _request: web.Request) -> web.Response:
        if self._faults.due(Fault.GARBAGE_METRICS):
            return web.Response(body=_GARBAGE, content_type="text/plain")
        text = render_metrics(self._settings, self._client.plan, self._client.stats)
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
            for name in self._settings.served_model_names
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
        scripted = self._burst_error()
        if scripted is not None:
            return _error_response(scripted)
        try:
            body = await request.json()
        except ValueError:
            return _error_response(ApiError(400, "BadRequestError", "the body is not JSON"))
        parsed = parse_request(body, endpoint, self._settings, self._client.plan.max_model_len)
        if isinstance(parsed, ApiError):
            return _error_response(parsed)
        prefix = "chatcmpl" if endpoint == "chat" else "cmpl"
        answer = Answer(f"{prefix}-{uuid.uuid4().hex}", parsed, with_text=not self._settings.skip_tokenizer_init)
        with self._client.generate(answer.request_id, parsed.prompt, parsed.max_tokens) as generation:
            if parsed.stream:
                return await self._stream(request, generation, answer)
            return await _collect(generation, answer)

    def _burst_error(self) -> ApiError | None:
        for fault, status, kind in (
            (Fault.HTTP_500_BURST, 500, "InternalServerError"),
            (Fault.HTTP_503_BURST, 503, "ServiceUnavailableError"),
        ):
            if self._burst_left[status] > 0 and self._faults.due(fault):
                self._burst_left[status] -= 1
                return ApiError(status, kind, f"scripted fault {fault.value}")
        return None

    async def _stream(self, request: web.Request, generation: Generation, answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        stop_after = _tokens_before_cut(answer.request) if self._faults.due(Fault.TRUNCATED_SSE) else None
        opening = answer.opening_chunk()
        if opening is not None:
            await _write_event(response, opening)
        while not generation.finished:
            output = await generation.next()
            if output is None:
                await _write_event(response, _ENGINE_IS_DEAD.body())
                break
            answer.token_ids.append(output.token_id)
            answer.cached_tokens = output.cached_tokens
            await _write_event(response, answer.token_chunk(finished=output.finished))
            if len(answer.token_ids) == stop_after:
                return response
        if answer.request.include_usage and answer.token_ids:
            await _write_event(response, answer.usage_chunk())
        await response.write(b"data: [DONE]\n\n")
        return response


def _tokens_before_cut(request: GenerationRequest) -> int:
    return max(1, request.max_tokens // 2)


async def _collect(generation: Generation, answer: Answer) -> web.Response:
    while not generation.finished:
        output = await generation.next()
        if output is None:
            return _error_response(_ENGINE_IS_DEAD)
        answer.token_ids.append(output.token_id)
        answer.cached_tokens = output.cached_tokens
    return web.json_response(answer.whole())


def _error_response(error: ApiError) -> web.Response:
    return web.json_response(error.body(), status=error.status)


async def _write_event(response: web.StreamResponse, body: dict[str, object]) -> None:
    await response.write(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")
