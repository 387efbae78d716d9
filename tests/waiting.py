"""For tests that are no coroutines: polling until something holds."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Returns once it holds; a loaded machine takes its time."""
    deadline_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
