"""Event streams, cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.load.client.excerpt import excerpt
from optimizer.load.client.sse import MAX_EVENT_BYTES, SseDecoder
from optimizer.load.failure import StreamBroken

STREAM = 'data: {"a": "ü"}\n\n: a comment\n\nevent: x\ndata:two\ndata: lines\r\n\r\ndata: [DONE]\n\n'.encode()


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_cuts_do_not_matter(cuts: list[int]) -> None:
    decoder = SseDecoder()
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [e for a, b in pairwise(edges) for e in decoder.feed(STREAM[a:b])]
    assert events == ['{"a": "ü"}'.encode(), b"two\nlines", b"[DONE]"]


def test_an_event_is_not_told_before_it_is_complete() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: 1\n") == []
    assert decoder.feed(b"\n") == [b"1"]


@pytest.mark.parametrize("ends", [b"\n\n", b"\r\n\r\n", b"\r\n\n", b"\n\r\n"])
def test_lines_may_end_in_either_way(ends: bytes) -> None:
    assert SseDecoder().feed(b"data: 1" + ends) == [b"1"]


def test_an_endless_line_is_refused() -> None:
    decoder = SseDecoder()
    with pytest.raises(StreamBroken, match="beginning '<html>"):
        decoder.feed(b"<html>" + b"x" * MAX_EVENT_BYTES)


def test_an_excerpt_is_one_short_line() -> None:
    assert excerpt(b"<html>\n  <body>\xff") == "<html> <body>\ufffd"
    assert excerpt("x" * 300) == "x" * 200 + "…"
