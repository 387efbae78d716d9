"""Progress of one measurement: a line an event."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Protocol

from rich.console import Console
from rich.text import Text

from optimizer.report.secrets import hide_secrets
from optimizer.report.wording import duration

_EVERY_S = 10.0


class _WindowProgress(Protocol):
    @property
    def done_requests(self) -> int: ...

    @property
    def elapsed_s(self) -> float: ...

    @property
    def window_s(self) -> float: ...


class MeasureProgress:
    """Tells what happens; how far a window is when it opens, and then every ten seconds.

    Args:
        console: Where lines go.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told_s = -math.inf
        self._last = ""

    def say(self, text: str) -> None:
        """A line with the time of day; the same is not said twice in a row."""
        if text != self._last:
            stamp = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
            self._console.print(Text(f"{stamp} {' '.join(hide_secrets(text).splitlines())}"), soft_wrap=True)
            self._last, self._told_s = text, -math.inf

    def window(self, progress: _WindowProgress) -> None:
        """How far the window is."""
        if time.monotonic() - self._told_s >= _EVERY_S:
            far = f"{duration(progress.elapsed_s)} of about {duration(progress.window_s)}"
            self.say(f"window open: {progress.done_requests} requests ended, {far}")
            self._told_s = time.monotonic()
