"""Option values that need reading: spans of time and ranges of ports."""

from __future__ import annotations

import re

from optimizer.core.errors import InputError

_DURATION = re.compile(r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s?)?", re.ASCII)
_PORTS = re.compile(r"(\d{1,5})-(\d{1,5})", re.ASCII)
_LOWEST_PORT = 1024
_HIGHEST_PORT = 65535


def parse_duration_s(text: str, option: str) -> float:
    """Seconds of a span such as `90s`, `30m`, `2h` or `1h30m`; a bare number is seconds.

    Raises:
        InputError: It is no span of time, or not above 0.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    parts = {} if match is None else {unit: float(value) for unit, value in match.groupdict().items() if value}
    seconds = sum(parts.get(unit, 0.0) * size for unit, size in (("h", 3600), ("m", 60), ("s", 1)))
    if seconds <= 0:
        raise InputError(f"{option} {text!r} is no span of time above 0", hint="write it as 90s, 30m, 2h or 1h30m")
    return seconds


def parse_port_range(text: str, option: str) -> tuple[int, int]:
    """Lowest and highest port of a range such as `20000-20100`.

    Raises:
        InputError: It is no range of ports that an ordinary user may listen on.
    """
    match = _PORTS.fullmatch(text.strip())
    low, high = (int(match[1]), int(match[2])) if match else (0, 0)
    if not _LOWEST_PORT <= low <= high <= _HIGHEST_PORT:
        raise InputError(
            f"{option} {text!r} is no range of ports",
            hint=f"write it as LOW-HIGH with {_LOWEST_PORT} <= LOW <= HIGH <= {_HIGHEST_PORT}",
        )
    return low, high
