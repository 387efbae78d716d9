"""What a process calls itself in `ps` and `top`."""

from __future__ import annotations

import ctypes

_PR_SET_NAME = 15


def set_process_name(name: str) -> None:
    """Sets `/proc/self/comm`, of which the kernel keeps 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
