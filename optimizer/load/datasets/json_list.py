"""Reads a JSON list element by element, so that a file of any size needs the memory of one element."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from optimizer.load.datasets.raw_file import LONGEST_ROW_BYTES, RawFile
from optimizer.load.datasets.strict_json import DECODER

_SPACE = re.compile(r"[ \t\r\n]*")
_NEAR_THE_END = 16
"""So close to the end of what was read an error may be due to what is still to come: an escape, a literal, a number."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element of the list: where it begins (line from 1, offset and size in bytes) and what it is."""

    line: int
    offset: int
    size: int
    value: object


def elements(file: RawFile) -> Iterator[Element]:
    """The elements of the list that the file holds.

    Raises:
        InputError: It is no JSON list; the line is named.
    """
    return _Reader(file).elements()


@dataclass(slots=True)
class _Reader:
    file: RawFile
    _text: str = ""
    _at: int = 0
    _line: int = 1
    _offset: int = 0
    _ended: bool = False
    _chunks: Iterator[bytes] = field(init=False)
    _decoder: codecs.IncrementalDecoder = field(init=False)

    def __post_init__(self) -> None:
        self._chunks = self.file.chunks()
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def elements(self) -> Iterator[Element]:
        if self._next_character() == "\ufeff":
            self._take(self._at + 1)
        self._expect("[", "this is no JSON list: it must begin with [")
        if self._next_character() != "]":
            yield self._element()
            while self._next_character() == ",":
                self._take(self._at + 1)
                yield self._element()
        self._expect("]", "a comma or the end of the list, ], is missing")
        if self._next_character():
            raise self.file.wrong(self._line, "something follows the end of the list")

    def _element(self) -> Element:
        self._next_character()
        line, offset = self._line, self._offset
        value, end = self._decode()
        self._take(end)
        return Element(line, offset, self._offset - offset, value)

    def _decode(self) -> tuple[object, int]:
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut_off = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _NEAR_THE_END
                if cut_off and len(self._text) - self._at <= LONGEST_ROW_BYTES and self._more():
                    continue
                line = self._line + self._text.count("\n", self._at, error.pos)
                raise self.file.wrong(line, f"this is not JSON: {error.msg}") from None
            except (RecursionError, ValueError) as error:
                raise self.file.wrong(self._line, f"this is not JSON that can be read: {error}") from None
            # A number near the end of the text read so far may go on: 0 may turn out to be 0.5 or 0e1.
            whole = isinstance(value, str | list | dict) or end + _NEAR_THE_END <= len(self._text)
            if whole or not self._more():
                return value, end

    def _expect(self, character: str, otherwise: str) -> None:
        if self._next_character() != character:
            raise self.file.wrong(self._line, otherwise)
        self._take(self._at + 1)

    def _next_character(self) -> str:
        """Goes past white space; empty at the end of the file."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._take(self._at if space is None else space.end())
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _take(self, end: int) -> None:
        taken = self._text[self._at : end]
        self._line += taken.count("\n")
        self._offset += len(taken.encode())
        self._at = end

    def _more(self) -> bool:
        """Reads on, which moves the place in the text; False, and nothing moves, at the end of the file."""
        if self._ended:
            return False
        data = next(self._chunks, b"")
        self._ended = not data
        try:
            text = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            line = self._line + self._text.count("\n", self._at) + error.object[: error.start].count(b"\n")
            raise self.file.wrong(line, "this is not UTF-8 text") from None
        if not self._ended:
            self._text, self._at = self._text[self._at :] + text, 0
        return not self._ended
