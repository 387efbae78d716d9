"""A JSON list is read element by element, whatever falls on the border between two pieces of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.errors import InputError
from optimizer.load.datasets import raw_file
from optimizer.load.datasets.json_list import elements
from optimizer.load.datasets.raw_file import RawFile

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lists")


@given(
    values=st.lists(_values, max_size=5),
    chunk=st.integers(1, 40),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
)
def test_the_elements_are_those_of_the_list(
    folder: Path, values: list[Any], chunk: int, indent: int | None, ascii_only: bool
) -> None:
    path = folder / "list.json"
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    path.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_file, "_CHUNK_BYTES", chunk)
        file = RawFile(path)
        found = list(elements(file))
    assert [element.value for element in found] == values
    for element in found:
        assert json.loads(file.read(element.offset, element.size)) == element.value
        assert element.line == 1 + text[: element.offset].count(b"\n")


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"", 1, "this is no JSON list"),
        (b'\n{"a": 1}', 2, "this is no JSON list"),
        (b"[1\n,2", 2, "the end of the list, ], is missing"),
        (b"[1\n 2]", 2, "a comma or the end of the list"),
        (b"[1,\n]", 2, "this is not JSON"),
        (b'[{"a": 1},\n{"b": 2,}]', 2, "this is not JSON"),
        (b'\n["a', 2, "this is not JSON"),
        (b"[NaN]", 1, "NaN is no JSON number"),
        (b"[1]\n\nx", 3, "something follows the end"),
        (b'["a",\n"\xff"]', 2, "this is not UTF-8 text"),
        (b"[" * 200_000, 1, "this is not JSON"),
    ],
)
def test_what_is_no_list_is_refused_with_its_line(tmp_path: Path, content: bytes, line: int, words: str) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(elements(RawFile(path)))
    assert caught.value.message.startswith(f"{path}: line {line}: ")
    assert words in caught.value.message


def test_an_element_that_never_ends_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(b'["' + b"x" * 5000)
    monkeypatch.setattr(raw_file, "_CHUNK_BYTES", 100)
    monkeypatch.setattr("optimizer.load.datasets.json_list.LONGEST_ROW_BYTES", 1000)
    file = RawFile(path)
    chunks, read = file.chunks, []

    def counted() -> Iterator[bytes]:
        for piece in chunks():
            read.append(len(piece))
            yield piece

    monkeypatch.setattr(file, "chunks", counted)
    with pytest.raises(InputError, match="line 1: this is not JSON"):
        list(elements(file))
    assert sum(read) < 1500
