"""A file whose rows are read by their place; what is packed is unpacked to disk first, so that memory stays small."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path

from optimizer.core.errors import InputError

LONGEST_ROW_BYTES = 32 * 2**20
"""A row that is longer is refused: it is hardly one, and would be held in memory as a whole."""
_CHUNK_BYTES = 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class RawFile:
    """The bytes of one file, held open: what replaces it on disk meanwhile is not seen.

    Args:
        path: The file; a name that ends in `.gz` says that it is packed.

    Attributes:
        sha256: Of the file as it lies on disk.

    Raises:
        InputError: It cannot be read or unpacked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                file.seek(0)
                self._fd = _unpacked(path) if path.suffix == ".gz" else os.dup(file.fileno())
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such file", hint="check source.path in the workload") from None
        except OSError as error:
            raise InputError(f"{path}: the file cannot be read: {error.strerror or error}") from None
        weakref.finalize(self, os.close, self._fd)

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on.

        Raises:
            InputError: The file was cut short or became unreadable since it was opened.
        """
        try:
            data = os.pread(self._fd, size, offset)
        except OSError as error:
            raise InputError(f"{self._path}: the file cannot be read: {error.strerror}") from None
        if len(data) != size:
            raise InputError(f"{self._path}: the file has changed while it was in use", hint="start again")
        return data

    def chunks(self) -> Iterator[bytes]:
        """All of it, in pieces of a MiB."""
        offset = 0
        while True:
            try:
                data = os.pread(self._fd, _CHUNK_BYTES, offset)
            except OSError as error:
                raise InputError(f"{self._path}: the file cannot be read: {error.strerror}") from None
            if not data:
                return
            yield data
            offset += len(data)

    def lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Line number (from 1), offset and bytes of each line that is not blank, without its end.

        Raises:
            InputError: A line is longer than any row may be.
        """
        rest, offset, number = b"", 0, 0
        for data in self.chunks():
            pieces = (rest + data).split(b"\n")
            rest = pieces.pop()
            for piece in pieces:
                number += 1
                yield from self._line(number, offset, piece)
                offset += len(piece) + 1
            if len(rest) > LONGEST_ROW_BYTES:
                raise self.wrong(number + 1, f"the line is longer than {LONGEST_ROW_BYTES >> 20} MiB")
        yield from self._line(number + 1, offset, rest)

    def wrong(self, line: int, words: str) -> InputError:
        """The error that says what is wrong on a line."""
        return InputError(f"{self._path}: line {line}: {words}", hint="correct the line, or leave it out of the file")

    def _line(self, number: int, offset: int, line: bytes) -> Iterator[tuple[int, int, bytes]]:
        skipped = len(_BYTE_ORDER_MARK) if number == 1 and line.startswith(_BYTE_ORDER_MARK) else 0
        if line[skipped:].strip():
            yield number, offset + skipped, line[skipped:]


def _unpacked(path: Path) -> int:
    """A descriptor of a nameless file with the content of a packed one."""
    with tempfile.TemporaryFile() as plain:
        try:
            with gzip.open(path, "rb") as packed:
                shutil.copyfileobj(packed, plain, _CHUNK_BYTES)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{path}: this is not a whole gzip file: {error}", hint="pack it again") from None
        plain.flush()
        return os.dup(plain.fileno())
