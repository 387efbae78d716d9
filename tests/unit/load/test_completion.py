"""One streamed completion over a real socket: token times, and every way an answer can be bad."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from optimizer.core.endpoint import EngineEndpoint
from optimizer.load.completion import UNFINISHED, RequestTrace, open_session, stream_completion
from optimizer.load.requests import PlannedRequest


async def ask(endpoint: EngineEndpoint, *, tokens: int = 4, times: int = 1) -> RequestTrace:
    traces = [RequestTrace(0.0, 3, tokens) for _ in range(times)]
    async with open_session() as session:
        for trace in traces:
            await stream_completion(session, endpoint, PlannedRequest([1, 2, 3], tokens), trace)
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
    assert trace.arrivals[0][0] - trace.sent_s >= 0.045
    # An arrival may be read late, so single gaps can shrink; together they cannot.
    assert len(trace.gaps_s) == 3
    assert 0.13 <= sum(trace.gaps_s) < 1.0
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
    assert trace.error.startswith(("ClientPayloadError", "ServerDisconnectedError", "ClientOSError"))
    assert trace.output_tokens <= 1


async def test_no_server_is_a_failure(serve: Any, answers: Any) -> None:
    async with serve(answers.well_behaved()) as engine:
        endpoint = engine.endpoint
    trace = await ask(endpoint)
    assert trace.error is not None
    assert trace.error.startswith("ClientConnectorError")
    assert "invented" not in trace.error


async def test_a_cancelled_request_stays_unfinished_and_leaves_no_connection(serve: Any, answers: Any) -> None:
    async with serve(answers.never_answers) as engine, open_session() as session:
        trace = RequestTrace(0.0, 3, 4)
        task = asyncio.create_task(stream_completion(session, engine.endpoint, PlannedRequest([1], 4), trace))
        await engine.until_under_way(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.until_under_way(0)
    assert trace.error == UNFINISHED
    assert trace.ended_s is None
