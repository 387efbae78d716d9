"""Responses of HTTP/1.1, cut anywhere, well framed and ill."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.load.client.http_response import MAX_HEAD_BYTES, MAX_LINE_BYTES, HttpResponse
from optimizer.load.failure import StreamBroken

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


def chunked(pieces: list[bytes], extension: bytes = b"") -> bytes:
    return b"".join(b"%X%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)


def read(data: bytes, cuts: list[int]) -> tuple[HttpResponse, bytes]:
    response = HttpResponse()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return response, b"".join(piece for a, b in pairwise(edges) for piece in response.feed(data[a:b]))


FRAMINGS = {
    "chunked": lambda body: CHUNKED + chunked(body) + b"0\r\n\r\n",
    "chunked, with extensions and trailers": lambda body: (
        CHUNKED + chunked(body, b" ;a=b") + b"000;last\r\nX-Sum: 1\r\nY: 2\r\n\r\n"
    ),
    "by length": lambda body: b"HTTP/1.1 200 OK\r\ncontent-LENGTH:\t%d \r\n\r\n" % len(b"".join(body)) + b"".join(body),
    "after interim responses": lambda body: (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
        + CHUNKED
        + chunked(body)
        + b"0\r\n\r\n"
    ),
}


@pytest.mark.parametrize("framing", FRAMINGS)
@given(body=BODIES, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_cuts_do_not_matter(framing: str, body: list[bytes], cuts: list[int]) -> None:
    response, read_body = read(FRAMINGS[framing](body), cuts)
    assert read_body == b"".join(body)
    assert (response.status, response.complete, response.reusable) == (200, True, True)


@given(body=BODIES, cuts=st.lists(st.integers(0, 400), max_size=6))
def test_without_a_length_the_end_of_the_connection_ends_the_body(body: list[bytes], cuts: list[int]) -> None:
    response, read_body = read(b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(body), cuts)
    assert read_body == b"".join(body)
    before = response.complete
    response.closed()
    assert (before, response.complete, response.reusable) == (False, True, False)


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive, Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
        (b"HTTP/1.1 200\r\n", True),
    ],
)
def test_whether_the_connection_serves_again(head: bytes, reusable: bool) -> None:
    response, _ = read(head + b"Content-Length: 0\r\n\r\n", [])
    assert response.complete
    assert response.reusable is reusable


def test_bytes_after_the_end_spoil_the_connection() -> None:
    response, body = read(CHUNKED + chunked([b"a"]) + b"0\r\n\r\nHTTP/1.1", [])
    assert body == b"a"
    assert response.complete
    assert not response.reusable


def test_a_chunk_is_passed_on_before_it_is_whole() -> None:
    response = HttpResponse()
    assert response.feed(CHUNKED + b"6\r\nabc") == [b"abc"]
    assert response.feed(b"def\r") == [b"def"]
    assert response.feed(b"\n0\r\n\r") == []
    assert not response.complete


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "an answer that is not HTTP/1: SSH-2.0"),
        (b"\x15\x03\x01\x00\x02\x02", "an answer that is not HTTP/1"),
        (b"HTTP/2 200 OK\r\n\r\n", "an answer that is not HTTP/1: HTTP/2"),
        (b"HTTP/1.1 2oo OK\r\n\r\n", "an answer that is not HTTP/1: HTTP/1.1 2oo"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "an HTTP header that is none: no colon"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer coding that is not chunked: gzip"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "content length that is no number: -1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "no number: 1, 2"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES, "HTTP headers of more than 65536 bytes"),
        (CHUNKED + b"xyz\r\n", "a chunk size that is no number: xyz"),
        (CHUNKED + b"-1\r\n", "a chunk size that is no number: -1"),
        (CHUNKED + b"1_0\r\n", "a chunk size that is no number: 1_0"),
        (CHUNKED + b"fffffffff\r\n", "a chunk size that is no number: fffffffff"),
        (CHUNKED + b"\r\n", "a chunk size that is no number: "),
        (CHUNKED + b"1\r\nab\r\n", "a chunk longer than its size: b"),
        (CHUNKED + b"1;" + b"x" * MAX_LINE_BYTES, "a line of more than 8192 bytes between the chunks"),
        (CHUNKED + b"0\r\nX: " + b"x" * MAX_LINE_BYTES, "a line of more than 8192 bytes between the chunks"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_what_is_not_http_is_said(data: bytes, said: str, at_once: bool) -> None:
    response = HttpResponse()
    pieces = [data] if at_once else [data[n : n + 7] for n in range(0, len(data), 7)]
    with pytest.raises(StreamBroken, match=said.replace("(", r"\(")):
        for piece in pieces:
            response.feed(piece)


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 400), max_size=4))
def test_noise_is_refused_or_read_and_never_breaks_the_reader(data: bytes, cuts: list[int]) -> None:
    for begins in (b"", b"HTTP/1.1 200 OK\r\n", CHUNKED):
        try:
            read(begins + data, cuts)
        except StreamBroken as broken:
            assert "\n" not in str(broken)
