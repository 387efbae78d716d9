"""How a study is searched and when that is no longer worth it: options of the command line, and keys of a space."""

from __future__ import annotations

import re

from optimizer.config.problems import nearest
from optimizer.core.errors import InputError
from optimizer.core.samplers import SAMPLERS

_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%", re.ASCII)


def known_sampler(name: str, *, origin: str) -> str:
    """The name of a strategy.

    Raises:
        InputError: There is none of that name.
    """
    if name not in SAMPLERS:
        raise InputError(
            f"{origin}: {name!r} is not known{nearest(name, list(SAMPLERS))}", hint=f"allowed: {', '.join(SAMPLERS)}"
        )
    return name


def share_of(text: str) -> float | None:
    """The share that `1%` is; None when it is no percentage between 0 and 100."""
    match = _SHARE.fullmatch(text.strip())
    share = float(match[1]) / 100.0 if match else 0.0
    return share if 0.0 < share < 1.0 else None


def parse_gain(text: str, *, origin: str) -> float:
    """The share that `1%` is.

    Raises:
        InputError: It is no percentage between 0 and 100.
    """
    share = share_of(text)
    if share is None:
        raise InputError(f"{origin}: {text!r} is no share between 0 % and 100 %", hint="write it as 1% or 0.5%")
    return share
