"""The beginning of an answer, for messages."""

from __future__ import annotations


def excerpt(body: bytes | str, limit: int = 200) -> str:
    """The beginning of an answer on one line; bytes that are not UTF-8 show as replacement characters."""
    text = body[: 4 * limit].decode("utf-8", errors="replace") if isinstance(body, bytes) else body[: 4 * limit]
    line = " ".join(text.split())
    return line if len(line) <= limit else line[:limit] + "…"
