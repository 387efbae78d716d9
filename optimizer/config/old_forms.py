"""What to write instead of an old flag or environment variable, in words for a person."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from optimizer.core.engine_config import FlagValue
from optimizer.engine.vllm.argv import flag_words
from optimizer.engine.vllm.old_flags import Fate, OldFlag

_LEAVE_OUT = "leave it out"


def instead_of(old: OldFlag, value: str, *, cards: int = 1) -> str:
    """Today's flags with the value taken over; or what to do where there are none.

    Args:
        old: The flag, or environment variable.
        value: The words of its value with blanks between; empty when it was given none.
        cards: Tensor-parallel size.
    """
    if old.fate is Fate.GONE:
        return "nothing replaces it: leave it out"
    if old.fate is Fate.NEEDLESS:
        return _LEAVE_OUT
    if old.fate is Fate.RELATED:
        return f"see {_named(old)}"
    settings = settings_of(old, value, cards=cards)
    if settings is None:
        return _named(old)
    return shlex.join(flag_words(settings)) if settings else _LEAVE_OUT


def settings_of(old: OldFlag, value: str, *, cards: int = 1) -> Mapping[str, FlagValue] | None:
    """Today's settings; None where the flag has no successor, or has no value that could be taken over."""
    if old.convert is None or (old.words != "none" and not value):
        return None
    return old.convert(value, cards)


def _named(old: OldFlag) -> str:
    return ", ".join(f"--{flag}" for flag in old.today)
