"""Answers on their way out: server-sent events as vLLM sends them, and the faults of a stream."""

from __future__ import annotations

import json
from dataclasses import dataclass

from aiohttp import web

from optimizer.engine.simulated.answers import Answer
from optimizer.engine.simulated.core_client import Generation
from optimizer.engine.simulated.fault_script import FaultWatch
from optimizer.engine.simulated.faults import Fault
from optimizer.engine.simulated.generation_request import ApiError
from optimizer.engine.simulated.vllm_log import ENGINE_DEAD

ENGINE_IS_DEAD = ApiError(500, "InternalServerError", ENGINE_DEAD)
_BROKEN_STREAM = ApiError(500, "InternalServerError", f"scripted fault {Fault.SSE_ERROR.value}")


@dataclass(frozen=True, slots=True)
class StreamManner:
    """How one stream is sent.

    Attributes:
        tokens_per_chunk: After the first, which always comes alone; as under `--stream-interval`.
        cut_after: Tokens after which a fault ends the stream; None for a whole one.
        cut_with: The error that is sent then; None ends it cleanly, without [DONE].
        usage: False leaves out what was asked for.
    """

    tokens_per_chunk: int
    cut_after: int | None
    cut_with: ApiError | None
    usage: bool


def manner_of(answer: Answer, stream_interval: int, faults: FaultWatch) -> StreamManner:
    """What the flags and the faults that are due make of a stream."""
    bundled = int(faults.amount(Fault.BUNDLED_TOKENS)) if faults.due(Fault.BUNDLED_TOKENS) else 1
    broken, truncated = faults.due(Fault.SSE_ERROR), faults.due(Fault.TRUNCATED_SSE)
    return StreamManner(
        tokens_per_chunk=max(bundled, stream_interval),
        cut_after=max(1, answer.request.max_tokens // 2) if broken or truncated else None,
        cut_with=_BROKEN_STREAM if broken else None,
        usage=not faults.due(Fault.NO_USAGE),
    )


async def stream_answer(
    request: web.Request, generation: Generation, answer: Answer, manner: StreamManner
) -> web.StreamResponse:
    """Sends the tokens as they come."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    if (opening := answer.opening_chunk()) is not None:
        await _write_event(response, opening)
    pending: list[int] = []
    while not generation.finished:
        output = await generation.next()
        if output is None:
            await _write_event(response, ENGINE_IS_DEAD.body())
            break
        pending += answer.take(output)
        cut = manner.cut_after is not None and len(answer.token_ids) >= manner.cut_after
        if cut or output.finished or len(pending) >= manner.tokens_per_chunk or len(pending) == len(answer.token_ids):
            await _write_event(response, answer.token_chunk(pending, finished=output.finished and not cut))
            pending = []
        if cut and manner.cut_with is None:
            return response
        if cut and manner.cut_with is not None:
            await _write_event(response, manner.cut_with.body())
            break
    else:
        if answer.request.include_usage and manner.usage:
            await _write_event(response, answer.usage_chunk())
    await response.write(b"data: [DONE]\n\n")
    return response


async def whole_answer(generation: Generation, answer: Answer) -> web.Response:
    """Waits for all tokens and answers at once."""
    while not generation.finished:
        output = await generation.next()
        if output is None:
            return error_response(ENGINE_IS_DEAD)
        answer.take(output)
    return web.json_response(answer.whole())


def error_response(error: ApiError) -> web.Response:
    """An answer that is no success."""
    return web.json_response(error.body(), status=error.status)


async def _write_event(response: web.StreamResponse, body: dict[str, object]) -> None:
    await response.write(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")
