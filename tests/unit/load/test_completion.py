"""One streamed completion over a real socket: token times, and every way an answer can be bad."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.engine_config import JsonValue
from optimizer.core.errors import InputError
from optimizer.load.client import connection
from optimizer.load.completion import UNFINISHED, Arrivals, RequestTrace, open_client
from optimizer.load.planned import ChatMessage, PlannedRequest


async def ask(endpoint: EngineEndpoint, *, tokens: int = 4, times: int = 1) -> RequestTrace:
    traces = [RequestTrace(0.0, 3, tokens) for _ in range(times)]
    async with open_client(endpoint) as client:
        for trace in traces:
            await client.stream(PlannedRequest([1, 2, 3], tokens), trace)
    return traces[-1]


async def test_the_request_says_all_that_fixes_the_answer(serve: Any, answers: Any) -> None:
    async with serve(answers.well_behaved()) as engine:
        trace = await ask(engine.endpoint)
    assert trace.error is None
    assert engine.authorizations == ["Bearer invented"]
    assert engine.bodies == [
        {
            "model": "nonce",
            "prompt": [1, 2, 3],
            "max_tokens": 4,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
    ]


async def test_token_times_are_those_of_the_stream(serve: Any, answers: Any) -> None:
    async with serve(answers.well_behaved(gap_s=0.05)) as engine:
        trace = await ask(engine.endpoint)
    assert [tokens for _, tokens in trace.arrivals] == [1, 1, 1, 1]
    assert trace.sent_s is not None
    # An arrival may be read late, so that gaps can shrink, but none is read before it was sent.
    for number, (at_s, _) in enumerate(trace.arrivals, 1):
        assert at_s - trace.sent_s >= 0.05 * number - 0.005
    assert len(trace.gaps_s) == 3
    assert sum(trace.gaps_s) == pytest.approx(trace.arrivals[-1][0] - trace.arrivals[0][0])
    assert trace.ended_s is not None
    assert trace.ended_s >= trace.arrivals[-1][0]


async def test_tokens_of_one_chunk_arrive_together(serve: Any, answers: Any) -> None:
    async with serve(answers.well_behaved(gap_s=0.03, tokens_per_chunk=4)) as engine:
        trace = await ask(engine.endpoint, tokens=10)
    assert [tokens for _, tokens in trace.arrivals] == [4, 4, 2]
    gaps = trace.gaps_s
    assert len(gaps) == 9
    assert [gap > 0.0 for gap in gaps] == [False] * 3 + [True] + [False] * 3 + [True, False]


async def test_without_continuous_usage_the_total_is_spread_over_the_chunks(serve: Any, answers: Any) -> None:
    async with serve(answers.well_behaved(gap_s=0.01, tokens_per_chunk=3, continuous=False)) as engine:
        trace = await ask(engine.endpoint, tokens=7)
    assert trace.error is None
    assert [tokens for _, tokens in trace.arrivals] == [2, 2, 3]


async def test_tokens_that_only_the_last_usage_tells_of_are_booked_on_the_last_chunk(serve: Any, answers: Any) -> None:
    pieces = [answers.chunk(1), answers.chunk(2), answers.chunk(4, choices=False), answers.DONE]
    async with serve(answers.raw(*pieces)) as engine:
        trace = await ask(engine.endpoint)
    assert trace.error is None
    assert trace.output_tokens == 4
    assert trace.arrivals[-1][0] == trace.arrivals[-2][0]


async def test_one_connection_serves_one_request_after_another(serve: Any, answers: Any) -> None:
    async with serve(answers.well_behaved()) as engine:
        await ask(engine.endpoint, times=5)
    assert len(engine.bodies) == 5
    assert len(engine.connections) == 1


BAD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "refusal": (
        lambda a: a.raw(b'{"error": "too many"}', content_type="application/json", status=503),
        'HTTP 503: {"error": "too many"}',
    ),
    "html": (
        lambda a: a.raw(b"<html>\n<b>gateway</b>", content_type="text/html"),
        "text/html where an event stream was asked for: <html> <b>gateway</b>",
    ),
    "error in the stream": (
        lambda a: a.raw(a.chunk(1), b'data: {"error": {"message": "EngineCore died"}}\n\n', a.DONE),
        "error in the stream: EngineCore died",
    ),
    "plain error in the stream": (lambda a: a.raw(b'data: {"error": "gone"}\n\n'), "error in the stream: gone"),
    "not JSON": (lambda a: a.raw(b"data: {oops\n\n"), "a chunk that is not JSON: {oops"),
    "not an object": (lambda a: a.raw(b"data: 7\n\n"), "a chunk that is no object: 7"),
    "truncated": (lambda a: a.raw(a.chunk(1), a.chunk(2)), "the stream ended without [DONE] after 2 tokens"),
    "cut in an event": (lambda a: a.raw(a.chunk(1), b'data: {"cho'), "the stream ended without [DONE] after 1 tokens"),
    "short": (lambda a: a.raw(a.chunk(3), a.DONE), "short answer: 3 of 4 tokens"),
    "long": (lambda a: a.raw(a.chunk(9), a.DONE), "long answer: 9 of 4 tokens"),
    "empty": (lambda a: a.raw(a.chunk(0, choices=False), a.DONE), "short answer: 0 of 4 tokens"),
    "no usage": (
        lambda a: a.raw(a.chunk(None), a.DONE),
        "the stream reports no usage, so its tokens cannot be counted",
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_answer_is_a_failure_that_says_why(serve: Any, answers: Any, case: str) -> None:
    make, error = BAD[case]
    async with serve(make(answers)) as engine:
        trace = await ask(engine.endpoint)
    assert trace.error == error
    assert trace.ended_s is not None


async def test_a_cut_connection_is_a_failure_and_keeps_its_tokens(serve: Any, answers: Any) -> None:
    async with serve(answers.hangs_up) as engine:
        trace = await ask(engine.endpoint)
    assert trace.error is not None
    assert trace.error.startswith(("the connection was closed ", "the connection broke ("))
    assert trace.output_tokens <= 1


async def test_no_server_is_a_failure(serve: Any, answers: Any) -> None:
    async with serve(answers.well_behaved()) as engine:
        endpoint = engine.endpoint
    trace = await ask(endpoint)
    assert trace.error is not None
    assert trace.error.startswith("no connection: ConnectionRefusedError: ")
    assert "invented" not in trace.error


async def test_a_cancelled_request_stays_unfinished_and_leaves_no_connection(serve: Any, answers: Any) -> None:
    async with serve(answers.never_answers) as engine, open_client(engine.endpoint) as client:
        trace = RequestTrace(0.0, 3, 4)
        task = asyncio.create_task(client.stream(PlannedRequest([1], 4), trace))
        await engine.until_under_way(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.until_under_way(0)
    assert trace.error == UNFINISHED
    assert trace.ended_s is None


class TellingArrivals(Arrivals):
    """Says when the third chunk has come."""

    def __init__(self) -> None:
        super().__init__()
        self.third = asyncio.Event()

    def append(self, arrival: tuple[float, int]) -> None:
        super().append(arrival)
        if len(self) == 3:
            self.third.set()


async def test_a_request_cancelled_between_two_tokens_keeps_what_came(serve: Any, answers: Any) -> None:
    async with serve(answers.well_behaved(gap_s=0.02)) as engine, open_client(engine.endpoint) as client:
        arrivals = TellingArrivals()
        trace = RequestTrace(0.0, 3, 10_000, arrivals=arrivals)
        task = asyncio.create_task(client.stream(PlannedRequest([1], 10_000), trace))
        await arrivals.third.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        tokens = trace.output_tokens
        await engine.until_under_way(0)
    assert trace.output_tokens == tokens >= 3
    assert (trace.error, trace.ended_s, trace.http_status) == (UNFINISHED, None, 200)


async def test_a_conversation_goes_to_the_chat_endpoint(serve: Any, answers: Any) -> None:
    messages = (ChatMessage("system", "Be brief."), ChatMessage("user", "Ünïcode?"))
    json_only: dict[str, JsonValue] = {"response_format": {"type": "json_object"}}
    request = PlannedRequest(messages, 2, exact=False, extra_body=json_only, session=3)
    trace = RequestTrace.of(request, 0.0)
    answer = answers.raw(answers.chunk(1), answers.chunk(2), answers.DONE)
    async with serve(answer) as engine, open_client(engine.endpoint) as client:
        await client.stream(request, trace)
    assert trace.error is None
    assert engine.paths == ["/v1/chat/completions"]
    assert engine.bodies == [
        {
            "model": "nonce",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ünïcode?"}],
            "max_completion_tokens": 2,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "response_format": {"type": "json_object"},
        }
    ]


async def test_the_engine_is_asked_for_token_ids_only_by_conversations_of_token_ids(serve: Any, answers: Any) -> None:
    requests = [PlannedRequest([1], 1, session=0), PlannedRequest("a text", 1, session=0), PlannedRequest([1], 1)]
    async with serve(answers.well_behaved()) as engine, open_client(engine.endpoint) as client:
        for request in requests:
            await client.stream(request, RequestTrace.of(request, 0.0))
    assert [body.get("return_token_ids") for body in engine.bodies] == [True, None, None]
    assert [body["prompt"] for body in engine.bodies] == [[1], "a text", [1]]


async def test_the_engine_knows_better_how_long_the_prompt_is(serve: Any, answers: Any) -> None:
    request = PlannedRequest("six words that nobody has counted", 2)
    trace = RequestTrace.of(request, 0.0)
    assert trace.prompt_tokens == 0
    async with serve(answers.well_behaved()) as engine, open_client(engine.endpoint) as client:
        await client.stream(request, trace)
    assert trace.prompt_tokens == len(request.prompt)
    assert trace.http_status == 200


# ---- Servers that are none ------------------------------------------------------------------------------------------


@asynccontextmanager
async def socket_server(handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    """A server that does as `handle` says with each connection, once the first line of a request has come."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readline()
            await handle(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def sends(data: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return handle


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # With a linger of 0 s the kernel sends a reset instead of an end.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
STRANGE: dict[str, tuple[Any, str]] = {
    "another protocol": (sends(b"SSH-2.0-OpenSSH_9.6\r\n"), "an answer that is not HTTP/1: SSH-2.0-OpenSSH_9.6"),
    "nothing": (sends(b""), "the connection was closed before an answer came"),
    "half a head": (sends(b"HTTP/1.1 200 OK\r\nConte"), "the connection was closed before an answer came"),
    "not UTF-8": (sends(STREAM + b'data: {"choices": ["\xff"]}\n\n'), "a chunk that is not UTF-8: "),
    "an end without [DONE]": (sends(STREAM), "the stream ended without [DONE] after 0 tokens"),
    "a long page": (
        sends(b"HTTP/1.0 404 No\r\nContent-Type: text/html\r\n\r\n<html>" + b"x" * 100_000),
        "HTTP 404: <html>xxx",
    ),
    "a redirection": (sends(b"HTTP/1.1 307 X\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"), "HTTP 307"),
    "a reset": (resets, "the connection broke (ConnectionResetError: "),
}


@pytest.mark.parametrize("case", STRANGE)
async def test_a_strange_server_is_a_failure_that_says_why(case: str) -> None:
    handle, error = STRANGE[case]
    async with socket_server(handle) as url:
        trace = await ask(EngineEndpoint(url, "m"))
    assert trace.error is not None
    assert trace.error.startswith(error)
    assert trace.ended_s is not None


async def test_a_name_that_leads_nowhere_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    trace = await ask(EngineEndpoint("http://no-such-host.invalid:80", "m"))
    assert trace.error is not None
    assert trace.error.startswith("no connection: gaierror: ")


async def test_a_name_that_can_be_none_is_a_failure() -> None:
    trace = await ask(EngineEndpoint("http://" + "a" * 70 + ".invalid", "m"))
    assert trace.error is not None
    assert trace.error.startswith("no connection: ")


async def test_plain_http_where_tls_was_asked_for_is_a_failure() -> None:
    async with socket_server(sends(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as url:
        trace = await ask(EngineEndpoint(url.replace("http:", "https:"), "m"))
    assert trace.error is not None
    assert trace.error.startswith("no connection: ")


@pytest.mark.parametrize("url", ["ftp://host", "http://", "127.0.0.1:8000", "http://host:99999", "http://hö.st"])
async def test_an_address_that_is_none_is_an_error_of_the_user(url: str) -> None:
    with pytest.raises(InputError, match="no http"):
        async with open_client(EngineEndpoint(url, "m")):
            pass


async def test_a_refusal_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CLOSING_TIMEOUT_S", 0.05)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 X\r\nContent-Length: 99\r\n\r\nbusy")
        await reader.read()
        await reader.read()

    async with socket_server(handle) as url:
        trace = await ask(EngineEndpoint(url, "m"))
    assert trace.error == "HTTP 503: busy"
    assert trace.http_status == 503


async def test_a_response_that_does_not_end_after_done_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, answers: Any
) -> None:
    monkeypatch.setattr(connection, "CLOSING_TIMEOUT_S", 0.05)
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(STREAM + answers.chunk(1) + answers.DONE)
        await reader.read()

    async with socket_server(handle) as url:
        trace = await ask(EngineEndpoint(url, "m"), tokens=1, times=2)
    assert trace.error is None
    assert connections == 2


async def test_a_connection_that_idled_for_long_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, serve: Any, answers: Any
) -> None:
    async with serve(answers.well_behaved()) as engine:
        await ask(engine.endpoint, times=2)
        assert len(engine.connections) == 1
        monkeypatch.setattr(connection, "MAX_IDLE_S", 0.0)
        await ask(engine.endpoint, times=2)
    assert len(engine.connections) == 3


async def test_a_server_that_closes_after_each_answer_is_asked_again(answers: Any) -> None:
    body = answers.chunk(1) + answers.DONE
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    async with socket_server(sends(head % len(body) + body)) as url:
        trace = await ask(EngineEndpoint(url, "m"), tokens=1, times=3)
    assert trace.error is None


async def test_many_requests_at_once_keep_their_answers_apart(serve: Any, answers: Any) -> None:
    requests = [PlannedRequest([1] * (n + 1), n + 1) for n in range(40)]
    traces = [RequestTrace.of(request, 0.0) for request in requests]
    async with serve(answers.well_behaved(gap_s=0.001)) as engine, open_client(engine.endpoint) as client:
        await asyncio.gather(*map(client.stream, requests, traces))
    assert [trace.output_tokens for trace in traces] == list(range(1, 41))
    assert [trace.prompt_tokens for trace in traces] == list(range(1, 41))
