"""One HTTP/1.1 response (RFC 9112), read as its bytes come in."""

from __future__ import annotations

import re
from collections.abc import Callable

from optimizer.load.client.excerpt import excerpt
from optimizer.load.failure import StreamBroken

MAX_HEAD_BYTES = 64 << 10
MAX_LINE_BYTES = 8 << 10
"""Of a chunk's size line with its extensions, or of one trailer field."""
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[^\r\n]*)?")
_PLAIN_SIZE = re.compile(rb"([0-9A-Fa-f]{1,7})\r\n")
_INCOMPLETE = -1


class HttpResponse:
    """Takes the bytes of one response, cut anywhere, and gives those of its body.

    Attributes:
        status: 0 until the head has come; interim responses (1xx) are passed over.
        headers: By lower-case name; of a name that comes twice the values are joined with a comma.
        complete: Whether the whole response has come.
        reusable: Whether the connection may carry another request after this one.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self.reusable = False
        self._rest = b""
        self._left = 0
        self._body: list[bytes] = []
        self._part: Callable[[bytes, int], int] = self._head
        self._at_size = False

    def feed(self, data: bytes) -> list[bytes]:
        """The pieces of the body that `data` brings; of a chunked body, each chunk that came whole is one.

        Raises:
            StreamBroken: This is not HTTP/1.1, or a part is longer than it can be.
        """
        if self._rest:
            data, self._rest = self._rest + data, b""
        position = self._whole_chunks(data) if self._at_size else 0
        while position < len(data) and not self.complete:
            after = self._part(data, position)
            if after == _INCOMPLETE:
                self._rest = data[position:]
                break
            position = after
        if self.complete and position < len(data):
            self.reusable = False
        body, self._body = self._body, []
        return body

    def closed(self) -> None:
        """The connection ended. This completes a response that says neither its length nor that it is chunked."""
        if self._part == self._until_close:
            self.complete = True

    def _whole_chunks(self, data: bytes) -> int:
        """Takes chunks as servers stream them, whole and plain; tells where the first other part begins."""
        position, match = 0, _PLAIN_SIZE.match
        while (plain := match(data, position)) is not None:
            begins = plain.end()
            ends = begins + int(plain[1], 16)
            if ends == begins or data[ends : ends + 2] != b"\r\n":
                break
            self._body.append(data[begins:ends])
            position = ends + 2
        return position

    # ---- Parts of a response: each takes the data and a position, and tells how far it got -----------------------

    def _head(self, data: bytes, position: int) -> int:
        if not data.startswith(b"HTTP/"[: len(data) - position], position):
            raise StreamBroken(f"an answer that is not HTTP/1: {excerpt(data[position:])}")
        ends = data.find(b"\r\n\r\n", position)
        if (len(data) if ends < 0 else ends) - position > MAX_HEAD_BYTES:
            raise StreamBroken(f"HTTP headers of more than {MAX_HEAD_BYTES} bytes")
        if ends < 0:
            return _INCOMPLETE
        status_line, *fields = data[position:ends].split(b"\r\n")
        status = _STATUS_LINE.fullmatch(status_line)
        if status is None:
            raise StreamBroken(f"an answer that is not HTTP/1: {excerpt(status_line)}")
        if 100 <= int(status[2]) < 200 and status[2] != b"101":
            return ends + 4
        self.headers = _headers(fields)
        self.status = int(status[2])
        self._frame(minor_version=int(status[1]))
        return ends + 4

    def _frame(self, minor_version: int) -> None:
        """Tells from the headers how the body is cut (RFC 9112, 6.3)."""
        options = {option.strip().lower() for option in self.headers.get("connection", "").split(",")}
        self.reusable = "close" not in options and (minor_version == 1 or "keep-alive" in options)
        coding, length = self.headers.get("transfer-encoding", ""), self.headers.get("content-length")
        if coding:
            if coding.lower() != "chunked":
                raise StreamBroken(f"a transfer coding that is not chunked: {excerpt(coding)}")
            self._part, self._at_size = self._size, True
        elif length is not None:
            if re.fullmatch(r"[0-9]{1,15}", length) is None:
                raise StreamBroken(f"a content length that is no number: {excerpt(length)}")
            self._left = int(length)
            self.complete = self._left == 0
            self._part = self._counted
        else:
            self.complete = self.status in (204, 304)
            self.reusable = self.reusable and self.complete
            self._part = self._until_close

    def _until_close(self, data: bytes, position: int) -> int:
        self._body.append(data[position:])
        return len(data)

    def _counted(self, data: bytes, position: int) -> int:
        after = self._take(data, position)
        self.complete = self._left == 0
        return after

    def _size(self, data: bytes, position: int) -> int:
        line, after = _line(data, position)
        if after == _INCOMPLETE:
            return _INCOMPLETE
        size = _SIZE.fullmatch(line)
        if size is None:
            raise StreamBroken(f"a chunk size that is no number: {excerpt(line)}")
        self._left = int(size[1], 16)
        self._part, self._at_size = self._chunk if self._left else self._trailer, False
        return after

    def _chunk(self, data: bytes, position: int) -> int:
        after = self._take(data, position)
        if self._left == 0:
            self._part = self._chunk_end
        return after

    def _chunk_end(self, data: bytes, position: int) -> int:
        if not b"\r\n".startswith(data[position : position + 2]):
            raise StreamBroken(f"a chunk longer than its size: {excerpt(data[position:])}")
        if len(data) - position < 2:
            return _INCOMPLETE
        self._part, self._at_size = self._size, True
        return position + 2

    def _trailer(self, data: bytes, position: int) -> int:
        line, after = _line(data, position)
        self.complete = after != _INCOMPLETE and not line
        return after

    def _take(self, data: bytes, position: int) -> int:
        """Passes on as much of what is left of a chunk or body as there is."""
        piece = data[position : position + self._left]
        self._body.append(piece)
        self._left -= len(piece)
        return position + len(piece)


def _line(data: bytes, position: int) -> tuple[bytes, int]:
    """The line that begins at `position`, and where the next one does; `_INCOMPLETE` while its end is not there."""
    ends = data.find(b"\r\n", position)
    if (len(data) if ends < 0 else ends) - position > MAX_LINE_BYTES:
        raise StreamBroken(f"a line of more than {MAX_LINE_BYTES} bytes between the chunks of an answer")
    return (b"", _INCOMPLETE) if ends < 0 else (data[position:ends], ends + 2)


def _headers(fields: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw in fields:
        parts = _FIELD.fullmatch(raw)
        if parts is None:
            raise StreamBroken(f"an HTTP header that is none: {excerpt(raw)}")
        name, value = parts[1].decode("ascii").lower(), parts[2].decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
