"""A command that is given to one of ours, behind `--`."""

from __future__ import annotations

import shlex


def pasted(words: list[str] | None) -> str | None:
    """The command as one text, whether it was given as one word in quotes or as many; None when there is none."""
    if not words:
        return None
    alone = len(words) == 1 and any(character.isspace() for character in words[0].strip())
    return words[0] if alone else shlex.join(words)
