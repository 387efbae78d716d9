"""What a faulty engine writes into its log."""

from __future__ import annotations

import os
import sys

from optimizer.engine.simulated.vllm_log import API_SERVER

MIB = 1024**2
_NOISE = b"(%s pid=%d) WARNING 11-29 16:29:09 [noise.py:1] %s\n"
_NOT_UTF8 = (b"caf\xe9 au lait", b"\xff\xfe\x00\x80 binary \xc3\x28", b"cut off in a character: \xf0\x9f\x98")


def flood_log(amount_mib: float) -> None:
    """Writes that much in lines of 1 KiB; a GiB takes a second or two."""
    head = _NOISE % (API_SERVER.encode(), os.getpid(), b"")
    block = (head[:-1] + b"x" * (1024 - len(head)) + b"\n") * 1024
    for _ in range(int(amount_mib)):
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


def write_bad_utf8() -> None:
    """Writes lines that no decoder of UTF-8 accepts."""
    for text in _NOT_UTF8:
        sys.stdout.buffer.write(_NOISE % (API_SERVER.encode(), os.getpid(), text))
    sys.stdout.buffer.flush()
