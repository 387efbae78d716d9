"""One streamed completion: the request, and the times at which its tokens came.

Tokens are counted by the usage that the engine reports, never by chunks, since speculative decoding and stream
intervals put several tokens into one chunk. Tokens of one chunk arrived together: the first of them takes the gap since
the chunk before, the others a gap of 0. Nothing is smeared over time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from optimizer.core.endpoint import EngineEndpoint
from optimizer.load.failure import StreamBroken
from optimizer.load.requests import PlannedRequest
from optimizer.load.sse import SseDecoder, excerpt

CONNECT_TIMEOUT_S = 10.0
CLOSING_TIMEOUT_S = 1.0
UNFINISHED = "unfinished"
"""Error of a request that had not ended when the run did."""


@dataclass(slots=True)
class RequestTrace:
    """What is known of one request so far. It stays valid when the request is cancelled half-way.

    Attributes:
        scheduled_s: When it should have left.
        prompt_tokens: Tokens of its prompt.
        asked_tokens: Tokens that the answer must have.
        sent_s: When it left, or None.
        ended_s: When it ended, well or badly, or None while it runs.
        arrivals: Time and number of tokens of each chunk that brought any.
        error: Why it failed; None once it has succeeded.
    """

    scheduled_s: float
    prompt_tokens: int
    asked_tokens: int
    sent_s: float | None = None
    ended_s: float | None = None
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    error: str | None = UNFINISHED

    @property
    def output_tokens(self) -> int:
        """Tokens it got."""
        return sum(tokens for _, tokens in self.arrivals)

    @property
    def gaps_s(self) -> list[float]:
        """The time before each token but the first, one element a token."""
        gaps: list[float] = []
        before: float | None = None
        for at, tokens in self.arrivals:
            gaps.extend([] if before is None else [at - before])
            gaps.extend([0.0] * (tokens - 1))
            before = at
        return gaps


def open_session() -> aiohttp.ClientSession:
    """A session without a limit on connections, and without one on how long an answer may take."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


async def stream_completion(
    session: aiohttp.ClientSession, endpoint: EngineEndpoint, request: PlannedRequest, trace: RequestTrace
) -> None:
    """Sends one request and writes into `trace` what comes of it; trouble with the answer ends in `trace.error`."""
    trace.sent_s = time.monotonic()
    try:
        async with session.post(
            f"{endpoint.base_url}/v1/completions", json=_body(endpoint, request), headers=endpoint.headers
        ) as response:
            await _read(response, trace)
    except StreamBroken as broken:
        trace.error = str(broken)
    except (aiohttp.ClientError, OSError) as error:
        trace.error = f"{type(error).__name__}: {excerpt(str(error))}".removesuffix(": ")
    else:
        trace.error = _wrong_length(trace)
    trace.ended_s = time.monotonic()


def _body(endpoint: EngineEndpoint, request: PlannedRequest) -> dict[str, Any]:
    return {
        "model": endpoint.model,
        "prompt": request.prompt,
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _wrong_length(trace: RequestTrace) -> str | None:
    got = trace.output_tokens
    if got == trace.asked_tokens:
        return None
    return f"{'short' if got < trace.asked_tokens else 'long'} answer: {got} of {trace.asked_tokens} tokens"


async def _read(response: aiohttp.ClientResponse, trace: RequestTrace) -> None:
    if response.status != 200:
        raise StreamBroken(f"HTTP {response.status}: {excerpt(await response.content.read(2048))}")
    if response.content_type != "text/event-stream":
        body = excerpt(await response.content.read(2048))
        raise StreamBroken(f"{response.content_type or 'untyped body'} where an event stream was asked for: {body}")
    decoder, counter = SseDecoder(), _TokenCounter(trace)
    async for piece in response.content.iter_any():
        now = time.monotonic()
        for data in decoder.feed(piece):
            if data == "[DONE]":
                counter.finish()
                await _read_to_end(response)
                return
            counter.chunk(data, now)
    raise StreamBroken(f"the stream ended without [DONE] after {trace.output_tokens} tokens")


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    """Reads what follows [DONE], which is nothing, so that the connection can serve the next request."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(CLOSING_TIMEOUT_S):
            await response.content.read()


class _TokenCounter:
    """Turns chunks into arrivals of tokens.

    An engine that reports usage only at the end gets its total spread evenly over its chunks, one token each if they
    agree.
    """

    def __init__(self, trace: RequestTrace) -> None:
        self._trace = trace
        self._counted = 0
        self._last_chunk_s: float | None = None
        self._uncounted_s: list[float] = []
        self._total: int | None = None

    def chunk(self, data: str, now: float) -> None:
        """Takes the data of one event that came at `now`."""
        usage, has_choices = _parse_chunk(data)
        if usage is not None:
            self._total = usage
        if has_choices:
            self._last_chunk_s = now
            if usage is None:
                self._uncounted_s.append(now)
            elif usage > self._counted and not self._uncounted_s:
                self._trace.arrivals.append((now, usage - self._counted))
                self._counted = usage

    def finish(self) -> None:
        """Books the tokens that only the last usage tells of."""
        if self._total is None:
            raise StreamBroken("the stream reports no usage, so its tokens cannot be counted")
        missing = self._total - self._counted
        times = self._uncounted_s or ([] if self._last_chunk_s is None else [self._last_chunk_s])
        if missing > 0 and times:
            shares = [missing * (n + 1) // len(times) - missing * n // len(times) for n in range(len(times))]
            self._trace.arrivals.extend((at, share) for at, share in zip(times, shares, strict=True) if share)


def _parse_chunk(data: str) -> tuple[int | None, bool]:
    """Completion tokens so far (None if not told), and whether the chunk carries an answer.

    Raises:
        StreamBroken: It is no completion chunk, or the engine reports an error in it.
    """
    try:
        chunk = json.loads(data)
    except json.JSONDecodeError:
        raise StreamBroken(f"a chunk that is not JSON: {excerpt(data)}") from None
    if not isinstance(chunk, dict):
        raise StreamBroken(f"a chunk that is no object: {excerpt(data)}")
    if chunk.get("error"):
        error = chunk["error"]
        said = error.get("message", error) if isinstance(error, dict) else error
        raise StreamBroken(f"error in the stream: {excerpt(str(said))}")
    usage = chunk.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return (tokens if isinstance(tokens, int) else None), bool(chunk.get("choices"))
