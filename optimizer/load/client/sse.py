"""Server-sent events, decoded as the bytes come in."""

from __future__ import annotations

from optimizer.load.client.excerpt import excerpt
from optimizer.load.failure import StreamBroken

MAX_EVENT_BYTES = 4 << 20
"""No completion chunk is anywhere near this; a longer line is something else, such as a page of HTML."""


class SseDecoder:
    """Turns pieces of an event stream, cut anywhere, into the `data` of its complete events."""

    def __init__(self) -> None:
        self._under_way = False
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that `piece` completes, in order.

        Raises:
            StreamBroken: An event is longer than any can be.
        """
        if self._under_way or piece.find(b"\n") != len(piece) - 2 or not piece.startswith(b"data: "):
            return self._lines(piece)
        # As engines stream: one whole event in one piece.
        return [piece[6:-2]] if piece[-1:] == b"\n" and piece[-3:] != b"\r\n\n" else self._lines(piece)

    def _lines(self, piece: bytes) -> list[bytes]:
        events: list[bytes] = []
        first, *others = piece.split(b"\n")
        self._rest.append(first)
        self._rest_bytes += len(first)
        for begun in others:
            self._line(b"".join(self._rest).removesuffix(b"\r"), events)
            self._rest, self._rest_bytes = [begun], len(begun)
        if self._rest_bytes + self._data_bytes > MAX_EVENT_BYTES:
            beginning = b"".join([*self._data, *self._rest])
            raise StreamBroken(f"an event of more than {MAX_EVENT_BYTES} bytes, beginning {excerpt(beginning)!r}")
        self._under_way = bool(self._rest_bytes or self._data)
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
            self._data_bytes += len(self._data[-1]) + 1
        elif not line and self._data:
            events.append(b"\n".join(self._data))
            self._data, self._data_bytes = [], 0
