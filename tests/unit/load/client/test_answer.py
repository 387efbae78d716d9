"""From the bytes of an answer to its trace, wherever the bytes are cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.load.client.answer import SPARE_CHUNKS, AnswerReader
from optimizer.load.client.trace import Arrivals, RequestTrace
from optimizer.load.failure import StreamBroken
from optimizer.load.planned import ChatMessage, PlannedRequest

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def event(data: bytes | dict[str, Any]) -> bytes:
    text = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
    return b"%x\r\ndata: %b\n\n\r\n" % (len(text) + 8, text)


def piece(tokens: int | None, **choice: Any) -> bytes:
    chunk: dict[str, Any] = {"id": "a", "choices": [{"index": 0, "text": "x"} | choice]}
    return event(chunk if tokens is None else chunk | {"usage": usage(tokens)})


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 9, "total_tokens": 9 + tokens, "completion_tokens": tokens}


def last(tokens: int) -> bytes:
    return event({"id": "a", "choices": [], "usage": usage(tokens)}) + event(b"[DONE]")


def read(pieces: list[bytes], request: PlannedRequest) -> RequestTrace:
    """The trace of an answer whose n-th piece comes at n seconds."""
    trace = RequestTrace.of(request, 0.0)
    reader = AnswerReader(request, trace)
    for at_s, data in enumerate(pieces):
        reader.received(data, float(at_s))
    return trace


def token_ids(tokens: int, **further: Any) -> PlannedRequest:
    return PlannedRequest([1, 2, 3], tokens, **further)


COUNTED = HEAD + b"".join(piece(n) for n in (1, 2, 5, 5, 6)) + last(6) + END
ONLY_AT_THE_END = HEAD + b"".join(piece(None, text=text) for text in ("ä", '"usage":{', "c")) + last(6) + END


@pytest.mark.parametrize("whole", [COUNTED, ONLY_AT_THE_END])
@given(cuts=st.lists(st.integers(0, 900), max_size=12))
def test_cuts_do_not_change_what_is_counted(whole: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    trace = read([whole[a:b] for a, b in pairwise(edges)], token_ids(6))
    assert trace.error is None
    assert list(trace.arrivals.tokens) == ([1, 1, 3, 1] if whole is COUNTED else [2, 2, 2])
    assert trace.prompt_tokens == 9
    assert trace.http_status == 200


def test_a_token_has_the_time_at_which_its_chunk_was_complete() -> None:
    first, second = piece(1), piece(3)
    trace = read([HEAD, first[:-4], first[-4:] + second[:9], second[9:], last(3)], token_ids(3))
    assert list(trace.arrivals) == [(2.0, 1), (3.0, 2)]
    assert trace.gaps_s == [1.0, 0.0]
    assert trace.ended_s == 4.0


def test_what_opens_and_ends_a_chat_is_no_token() -> None:
    chat = PlannedRequest((ChatMessage("user", "hi"),), 2)
    opens: dict[str, Any] = {"delta": {"role": "assistant", "content": ""}}
    ends: dict[str, Any] = {"delta": {}, "finish_reason": "length"}
    said = [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]
    for counts in ((None, None, None, None), (0, 1, 2, 2)):
        pieces = [piece(n, **c) for n, c in zip(counts, (opens, *said, ends), strict=True)]
        trace = read([HEAD, *pieces, last(2)], chat)
        assert trace.error is None
        assert list(trace.arrivals) == [(2.0, 1), (3.0, 1)]


def test_without_a_tokenizer_every_piece_is_empty_and_counts() -> None:
    trace = read([HEAD, piece(None, text=""), piece(None, text="", finish_reason="length"), last(2)], token_ids(2))
    assert list(trace.arrivals) == [(1.0, 1), (2.0, 1)]


@pytest.mark.parametrize(("got", "error"), [(3, None), (2, None), (0, "short answer: 0 of 3 tokens")])
def test_an_answer_that_may_end_earlier(got: int, error: str | None) -> None:
    pieces = [piece(n + 1) for n in range(got)]
    assert read([HEAD, *pieces, last(got)], token_ids(3, exact=False)).error == error


def test_the_answer_of_a_conversation_is_kept() -> None:
    request = token_ids(3, session=0)
    with_ids = [piece(1, token_ids=[7]), piece(3, token_ids=[8, 9]), piece(3, text="", finish_reason="length")]
    assert read([HEAD, *with_ids, last(3)], request).answer == [7, 8, 9]
    assert read([HEAD, piece(1, token_ids=[7]), piece(3, text="y"), last(3)], request).answer == "xy"
    assert read([HEAD, *with_ids, last(3)], token_ids(3)).answer is None
    assert read([HEAD, piece(1, token_ids=[7]), last(1)], request).answer is None


def test_a_server_that_does_not_end_is_given_up() -> None:
    with pytest.raises(StreamBroken, match="long answer: 4 of 3 tokens"):
        read([HEAD, piece(1), piece(4)], token_ids(3))
    with pytest.raises(StreamBroken, match="1004 chunks, and 3 tokens were asked for"):
        read([HEAD, *[piece(None)] * (4 + SPARE_CHUNKS)], token_ids(3))


def test_nothing_after_done_counts() -> None:
    trace = read([HEAD, piece(1), last(1) + event(b"{oops"), event(b"[DONE]"), END], token_ids(1))
    assert trace.error is None
    assert trace.ended_s == 2.0


def test_a_coding_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(StreamBroken, match="HTTP 200 in a coding that was not asked for: gzip"):
        read([HEAD[:-2] + b"Content-Encoding: gzip\r\n\r\n"], token_ids(1))


@given(
    whole=st.sampled_from([COUNTED, ONLY_AT_THE_END]),
    at=st.integers(0, 900),
    noise=st.binary(max_size=30),
    dropped=st.integers(0, 30),
)
def test_a_damaged_answer_is_refused_or_counted_and_never_breaks_the_reader(
    whole: bytes, at: int, noise: bytes, dropped: int
) -> None:
    damaged = whole[:at] + noise + whole[at + dropped :]
    request = token_ids(6)
    trace = RequestTrace.of(request, 0.0)
    reader = AnswerReader(request, trace)
    try:
        reader.received(damaged, 1.0)
        reader.closed(None)
    except StreamBroken as broken:
        assert "\n" not in str(broken)
    assert trace.output_tokens <= 6


def test_arrivals_are_a_sequence_of_pairs() -> None:
    arrivals = Arrivals()
    assert not arrivals
    arrivals.append((1.5, 2))
    arrivals.append((2.5, 1))
    assert (len(arrivals), arrivals[-1], list(arrivals)) == (2, (2.5, 1), [(1.5, 2), (2.5, 1)])
