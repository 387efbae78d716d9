"""An engine's log as text, however long it is and whatever its bytes."""

from __future__ import annotations

import re
from pathlib import Path

HEAD_BYTES = 2**20
TAIL_BYTES = 2**22
"""The beginning of a log holds how it was started, its end why it ended. A start writes some 10 kB to 1 MB."""
_GROWTH_BYTES = 2**16

_IDLE_CHATTER = re.compile(r"No available shared memory broadcast block found|Waiting for \d+ local, \d+ remote core")
"""What vLLM repeats while nothing happens."""


def read_log(path: Path) -> str:
    """The log; of one above 5 MiB the first MiB and the last 4, with a line that says what is left out.

    Bytes that are no UTF-8 are replaced. Empty when there is no log.
    """
    if not path.exists():
        return ""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= HEAD_BYTES + TAIL_BYTES:
            return file.read(HEAD_BYTES + TAIL_BYTES).decode("utf-8", errors="replace")
        head = file.read(HEAD_BYTES)
        file.seek(size - TAIL_BYTES)
        tail = file.read(TAIL_BYTES)
    left_out = f"\n[{size - HEAD_BYTES - TAIL_BYTES} bytes are left out here]\n"
    return head.decode("utf-8", errors="replace") + left_out + tail.decode("utf-8", errors="replace")


class LogGrowth:
    """Tells whether a log has grown by anything that shows progress."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen_bytes = 0

    def has_news(self) -> bool:
        """Whether something was written since the last call that is not the chatter of an engine that waits."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size <= self._seen_bytes:
            return False
        with self._path.open("rb") as file:
            file.seek(max(self._seen_bytes, size - _GROWTH_BYTES))
            text = file.read(_GROWTH_BYTES).decode("utf-8", errors="replace")
        self._seen_bytes = size
        return any(line.strip() and not _IDLE_CHATTER.search(line) for line in text.splitlines())
