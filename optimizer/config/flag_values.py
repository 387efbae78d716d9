"""Reads the text of a flag's value as vLLM does: numbers, sizes, JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Final

from optimizer.config.flag_tables import STATIC_TABLES, TEXT_FLAGS, FlagTables
from optimizer.config.secret_names import is_secret_setting
from optimizer.core.engine_config import FlagValue, JsonValue
from optimizer.core.errors import InputError

_INT = re.compile(r"[+-]?(0|[1-9]\d*)")
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(\.\d*)?[eE][+-]?\d+)")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<suffix>[kmgtKMGT])")
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}


def typed_value(flag: str, text: str, *, origin: str, tables: FlagTables = STATIC_TABLES) -> FlagValue:
    """The value as a number or JSON where it is one, and as text otherwise.

    Args:
        flag: Canonical flag, perhaps dotted. Below a dot any JSON is read, true and false included.
        text: The word as it was written.
        origin: Where it came from, for messages.
        tables: Which flags take sizes.

    Raises:
        InputError: The text begins as JSON and is none, or a size is not a whole number.
    """
    head, dot, _ = flag.partition(".")
    if head in TEXT_FLAGS or is_secret_setting(head):
        return text
    if text[:1] in ("{", "["):
        return _parsed_json(flag, text, origin)
    if dot and text in ("true", "false"):
        return text == "true"
    if flag in tables.sizes or dot:
        size = _SIZE.fullmatch(text)
        if size is not None:
            return _size(flag, text, size, origin)
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def _parsed_json(flag: str, text: str, origin: str) -> FlagValue:
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        hides = any(is_secret_setting(word) for word in re.findall(r"[\w-]+", text))
        shown = "(not shown: it seems to hold a secret)" if hides else text
        raise InputError(
            f"{origin}: the value of {flag} is broken JSON: {shown} ({error})",
            hint="put single quotes around it in the shell and double quotes inside",
        ) from None
    return value if isinstance(value, dict | list) else text


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _size(flag: str, text: str, match: re.Match[str], origin: str) -> int:
    """As vLLM: small letters are powers of 1000, capitals are powers of 1024 and take whole numbers only."""
    suffix = match["suffix"]
    power = _POWERS[suffix.lower()]
    if suffix.islower():
        return int(float(match["number"]) * 1000**power)
    if "." in match["number"]:
        raise InputError(
            f"{origin}: the value of {flag}, {text}, is no whole number of {suffix}",
            hint=f"a capital {suffix} is a power of 1024 and takes whole numbers; {text.lower()} is a power of 1000",
        )
    return int(match["number"]) << (10 * power)
