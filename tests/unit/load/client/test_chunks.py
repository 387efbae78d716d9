"""Chunks of completions: what is scanned must be what a JSON parser would find."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from optimizer.load.client.chunks import ChunkScanner, parse_chunk
from optimizer.load.failure import StreamBroken

HOSTILE = st.sampled_from(
    [
        '"usage":{"completion_tokens":7}}',
        '"completion_tokens":',
        '"error"',
        "error",
        '"choices":[{',
        "}",
        '"',
        "\\",
        "ü",
    ]
)
TEXT = st.lists(st.one_of(HOSTILE, st.text(max_size=5)), max_size=4).map("".join)
KEYS = st.one_of(
    st.sampled_from(["usage", "error", "choices", "completion_tokens", "prompt_tokens", "text", "delta", "id"]), TEXT
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 10**10), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
USAGE = st.one_of(
    VALUES, st.fixed_dictionaries({"prompt_tokens": st.integers(0, 9), "completion_tokens": st.integers(0, 10**9)})
)
CHUNKS = st.dictionaries(KEYS, VALUES, max_size=3).flatmap(
    lambda before: st.dictionaries(KEYS, VALUES, max_size=2).flatmap(
        lambda after: st.fixed_dictionaries({"choices": VALUES, "usage": USAGE}).map(
            lambda middle: before | middle | after
        )
    )
)


def usual(tokens: int, **further: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 5, "total_tokens": 5 + tokens, "completion_tokens": tokens}
    return {"id": "cmpl-1", "created": 1, "choices": [{"index": 0, "text": " a"}], "usage": usage, **further}


@given(chunk=CHUNKS, compact=st.booleans(), ascii_only=st.booleans())
@example(chunk=usual(3), compact=True, ascii_only=True)
@example(chunk=usual(3, system_fingerprint="x", metrics=None), compact=False, ascii_only=True)
@example(chunk=usual(3, error="x"), compact=True, ascii_only=True)
@example(chunk={"error": "x"} | usual(3), compact=True, ascii_only=True)
@example(chunk={"choices": [{"a": 1}], "error": {"message": "x"}} | usual(3), compact=True, ascii_only=True)
@example(chunk={"choices": [{"usage": {"completion_tokens": 7}}]}, compact=True, ascii_only=True)
@example(chunk={"a": {"choices": [{"b": 1}], "usage": {"completion_tokens": 7}}}, compact=True, ascii_only=True)
def test_a_count_that_is_scanned_is_the_one_that_is_parsed(
    chunk: dict[str, Any], compact: bool, ascii_only: bool
) -> None:
    data = json.dumps(chunk, separators=(",", ":") if compact else None, ensure_ascii=ascii_only).encode(
        errors="surrogatepass"
    )
    scanned = ChunkScanner().counted_tokens(data)
    if scanned is not None:
        parsed = parse_chunk(data)
        assert (parsed.tokens, parsed.has_choices) == (scanned, True)


@pytest.mark.parametrize("separators", [(",", ":"), None])
@pytest.mark.parametrize("further", [{}, {"system_fingerprint": None}])
def test_chunks_as_engines_write_them_are_scanned(separators: Any, further: dict[str, Any]) -> None:
    scanner = ChunkScanner()
    for tokens in (1, 2, 30):
        assert scanner.counted_tokens(json.dumps(usual(tokens, **further), separators=separators).encode()) == tokens


def test_the_scanner_follows_a_change_of_the_first_fields() -> None:
    scanner = ChunkScanner()
    assert scanner.counted_tokens(json.dumps(usual(1)).encode()) == 1
    assert scanner.counted_tokens(json.dumps({"model": "m"} | usual(2)).encode()) == 2
    assert scanner.counted_tokens(json.dumps(usual(3) | {"choices": []}).encode()) is None


def test_a_chunk_that_is_not_utf8_is_not_scanned() -> None:
    data = json.dumps(usual(1)).encode().replace(b" a", b"\xff")
    assert ChunkScanner().counted_tokens(data) is None
    with pytest.raises(StreamBroken, match="a chunk that is not UTF-8: "):
        parse_chunk(data)


@pytest.mark.parametrize(
    ("choice", "text", "token_ids", "says"),
    [
        ({"text": "ab"}, "ab", None, True),
        ({"text": ""}, "", None, False),
        ({"text": "", "token_ids": [4, 5]}, "", [4, 5], True),
        ({"delta": {"role": "assistant", "content": ""}}, "", None, False),
        ({"delta": {"content": "hi"}}, "hi", None, True),
        ({"delta": {"content": None, "reasoning": "hm"}}, "", None, True),
        ({"delta": {}, "finish_reason": "stop"}, "", None, False),
    ],
)
def test_what_a_piece_says(choice: dict[str, Any], text: str, token_ids: list[int] | None, says: bool) -> None:
    chunk = parse_chunk(json.dumps({"choices": [choice]}).encode())
    assert (chunk.text, chunk.token_ids, chunk.says, chunk.has_choices) == (text, token_ids, says, True)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"[" * 100_000, "a chunk that is not JSON"),
        (b'{"usage": {"completion_tokens": -1}}', "a usage that cannot be: completion_tokens -1"),
        (b'{"usage": {"prompt_tokens": 99999999999999999999}}', "a usage that cannot be: prompt_tokens"),
        (b'{"error": {"code": 500}}', "error in the stream: {'code': 500}"),
    ],
)
def test_what_is_no_chunk_is_said(data: bytes, said: str) -> None:
    with pytest.raises(StreamBroken) as broken:
        parse_chunk(data)
    assert str(broken.value).startswith(said)
