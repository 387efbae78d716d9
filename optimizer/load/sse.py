"""Server-sent events, decoded as the bytes come in."""

from __future__ import annotations

from optimizer.load.failure import StreamBroken

MAX_EVENT_BYTES = 4 << 20
"""No completion chunk is anywhere near this; a longer line is something else, such as a page of HTML."""


class SseDecoder:
    """Turns pieces of an event stream, cut anywhere, into the `data` of its complete events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[str]:
        """The data of the events that `piece` completes, in order.

        Raises:
            StreamBroken: A line is longer than any event can be.
        """
        events: list[str] = []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise StreamBroken(f"an event of more than {MAX_EVENT_BYTES} bytes, beginning {excerpt(self._rest)!r}")
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", errors="replace")
            if line.startswith("data:"):
                self._data.append(line.removeprefix("data:").removeprefix(" "))
            elif not line and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events


def excerpt(body: bytes | str, limit: int = 200) -> str:
    """The beginning of an answer, on one line, for messages."""
    text = body[: 4 * limit].decode("utf-8", errors="replace") if isinstance(body, bytes) else body
    line = " ".join(text.split())
    return line if len(line) <= limit else line[:limit] + "…"
