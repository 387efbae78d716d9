"""JSON text that gives back exactly what it was made from, and that any JSON reader accepts.

Standard JSON has no infinity and no NaN, so these are written as `{"$float": "inf"}`. A dict that would look like such
a mark is wrapped as `{"$dict": ...}`. Text is ASCII: PostgreSQL takes neither NUL nor lone surrogates in other forms.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from optimizer.core.engine_config import JsonValue

_FLOAT = "$float"
_DICT = "$dict"


def to_text(value: object) -> str:
    """JSON of None, bool, int, float, str, and of sequences and mappings of these. Tuples are written as lists.

    Raises:
        TypeError: Something else is in it, such as a numpy scalar that is no Python number.
    """
    return json.dumps(_marked(value), allow_nan=False, separators=(",", ":"))


def from_text(text: str) -> JsonValue:
    """The value that `to_text` was given. Keys keep their order; 1, 1.0 and true stay what they are.

    Raises:
        ValueError: It is not such a text.
    """
    return _unmarked(json.loads(text))


def _marked(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(float(value))}
    if isinstance(value, Mapping):
        marked = {key: _marked(item) for key, item in value.items()}
        return {_DICT: marked} if _looks_like_mark(marked) else marked
    if isinstance(value, (list, tuple)):
        return [_marked(item) for item in value]
    return value


def _unmarked(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _looks_like_mark(value):
        ((mark, inner),) = value.items()
        if mark == _FLOAT:
            return float(str(inner))
        if not isinstance(inner, dict):
            raise ValueError(f"{_DICT} holds no object: {inner!r}")
        value = inner
    return {key: _unmarked(item) for key, item in value.items()}


def _looks_like_mark(value: Mapping[str, object]) -> bool:
    return len(value) == 1 and (_FLOAT in value or _DICT in value)
