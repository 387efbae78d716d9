"""Tells how two studies of one name differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from optimizer.core.engine_config import JsonValue

_ABSENT = "(absent)"


def identity_difference(old: Mapping[str, JsonValue], new: Mapping[str, JsonValue]) -> list[str]:
    """What changed between two identities, one line each, such as `parameters.max-num-seqs.high: 64 -> 128`."""
    return list(_lines(old, new, ""))


def _lines(old: Mapping[str, JsonValue], new: Mapping[str, JsonValue], path: str) -> Iterator[str]:
    for key in dict.fromkeys((*old, *new)):
        here = f"{path}.{key}" if path else key
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _lines(before, after, here)
        elif key not in old or key not in new or _text(before) != _text(after):
            yield f"{here}: {_text(before) if key in old else _ABSENT} -> {_text(after) if key in new else _ABSENT}"


def _text(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
