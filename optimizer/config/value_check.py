"""Whether a value is one that vLLM's parser takes for a flag."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Final

from optimizer.config.problems import nearest
from optimizer.core.engine_config import FlagValue, JsonValue
from optimizer.engine.vllm.catalogue import FlagSpec, KeySpec

_TRUTHS: Final = {"true", "false", "1", "0", "yes", "no", "on", "off", "t", "f", "y", "n"}
_SHOWN_CHOICES = 30
_WANTED: Final = {
    "whole": "a whole number",
    "number": "a number",
    "size": "a whole number, or a size such as 8k",
    "size_or_auto": "a whole number, a size such as 8k, or auto",
    "text": "text",
    "json": "JSON",
    "switch": "true or false",
}


def value_problems(spec: FlagSpec, value: FlagValue) -> Iterator[str]:
    """What is wrong with a value, each in the rest of a sentence about the flag; nothing when vLLM's parser takes it.

    Args:
        spec: The flag.
        value: As read from a file or a command line: numbers and JSON typed, lists for several words.
    """
    if spec.words == "none":
        yield from _switch_problems(spec, value)
    elif isinstance(value, bool):
        if spec.words != "optional" or not value:
            yield f"needs a value, {_wanted(spec)}, and is only switched {'on' if value else 'off'}"
    elif spec.words == "many" and isinstance(value, list):
        if not value:
            yield "needs at least one value"
        for item in value:
            yield from _word_problems(spec, item)
    else:
        yield from _word_problems(spec, value)


def _switch_problems(spec: FlagSpec, value: FlagValue) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"is switched on or off, and takes no value such as {_shown(value)}"
    elif not value and not spec.off:
        yield "cannot be turned off: leave it out"


def _word_problems(spec: FlagSpec, value: JsonValue) -> Iterator[str]:
    if value is None or (value == "None" and spec.nullable):
        return
    if spec.choices is not None:
        yield from _choice_problems(spec, value)
    elif spec.kind in ("json", "json_or_text"):
        yield from _json_problems(spec, value)
    elif isinstance(value, dict | list):
        if spec.kind not in ("text", "any"):
            yield f"must be {_wanted(spec)}, not {_shown(value)}"
    elif not _is_scalar_of(spec.kind, value):
        yield f"must be {_wanted(spec)}, not {_shown(value)}"


def _is_scalar_of(kind: str, value: JsonValue) -> bool:
    if kind in ("whole", "size", "size_or_auto"):
        return _is_whole(value) or (kind == "size_or_auto" and str(value).lower() == "auto")
    return kind != "number" or _is_number(value)


def _is_whole(value: JsonValue) -> bool:
    if isinstance(value, str):
        try:
            int(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: JsonValue) -> bool:
    try:
        return not isinstance(value, bool | list | dict) and value is not None and not math.isnan(float(value))
    except ValueError:
        return False


def _choice_problems(spec: FlagSpec, value: JsonValue) -> Iterator[str]:
    allowed = [str(choice) for choice in spec.choices or ()]
    word = str(value).lower().replace("-", "_") if spec.folds else str(value)
    if word not in allowed:
        yield f"may not be {_shown(value)}{nearest(word, allowed)}; allowed: {_listed(allowed)}"


def _json_problems(spec: FlagSpec, value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        if spec.kind == "json_or_text":
            return
        try:
            value = json.loads(value)
        except ValueError:
            yield f"must be JSON, not {_shown(value)}"
            return
    if spec.keys is None:
        return
    if not isinstance(value, dict):
        yield f"must be a JSON object, not {_shown(value)}"
        return
    # vLLM reads `-` as `_` here, and here alone.
    dashes = spec.name == "speculative-config"
    given = {key.replace("-", "_") if dashes else key: inner for key, inner in value.items()}
    yield from _key_problems(spec.keys, given, "")


def _key_problems(keys: dict[str, KeySpec], value: dict[str, JsonValue], path: str) -> Iterator[str]:
    for key, inner in value.items():
        spec = keys.get(key)
        if spec is None:
            yield f"has no key {path}{key}{nearest(key, list(keys)) or f'; it has {_listed(sorted(keys))}'}"
        elif spec.keys is not None and isinstance(inner, dict):
            yield from _key_problems(spec.keys, inner, f"{path}{key}.")
        elif inner is not None and not _fits(spec, inner):
            wanted = (
                f"one of {_listed(list(spec.choices))}" if spec.choices else _WANTED.get(spec.kind, "something else")
            )
            yield f"needs {wanted} as {path}{key}, not {_shown(inner)}"


def _fits(spec: KeySpec, value: JsonValue) -> bool:
    """As lenient as vLLM's own reading of the object: words that stand for numbers and truths pass."""
    if spec.choices is not None:
        return value in spec.choices
    if spec.kind == "switch":
        return isinstance(value, bool) or str(value).lower() in _TRUTHS
    if spec.kind == "whole":
        return isinstance(value, bool) or _is_whole(value) or (isinstance(value, float) and value.is_integer())
    if spec.kind == "number":
        return isinstance(value, bool) or _is_number(value)
    if spec.kind == "text":
        return isinstance(value, str)
    return spec.kind != "json" or isinstance(value, dict)


def _wanted(spec: FlagSpec) -> str:
    if spec.choices is not None:
        return f"one of {_listed([str(choice) for choice in spec.choices])}"
    return _WANTED.get(spec.kind, "a value")


def _listed(words: list[str]) -> str:
    more = f", and {len(words) - _SHOWN_CHOICES} more" if len(words) > _SHOWN_CHOICES else ""
    return ", ".join(words[:_SHOWN_CHOICES]) + more


def _shown(value: JsonValue) -> str:
    text = json.dumps(value) if isinstance(value, dict | list | bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
