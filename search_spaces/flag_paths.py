"""Dotted flags: `speculative-config.method` is the key `method` inside the JSON value of `speculative-config`."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from optimizer.core.engine_config import FlagValue, JsonValue, canonical_flag
from optimizer.core.errors import InputError


def get_flag(flags: Mapping[str, FlagValue], dotted: str) -> JsonValue:
    """The value at a dotted flag, or None where it is not set."""
    head, *keys = canonical_flag(dotted).split(".")
    node: JsonValue = flags.get(head)
    for key in keys:
        if not isinstance(node, dict):
            return None
        node = node.get(key)
    return node


def set_flag(flags: dict[str, FlagValue], dotted: str, value: FlagValue) -> None:
    """Sets a dotted flag in place; JSON objects are merged key by key, anything else is replaced.

    Raises:
        InputError: A JSON object, or a key of one, meets a value that is none.
    """
    head, *keys = canonical_flag(dotted).split(".")
    nested: JsonValue = copy.deepcopy(value) if isinstance(value, list | dict) else value
    for key in reversed(keys):
        nested = {key: nested}
    present: JsonValue = flags.get(head)
    if isinstance(nested, dict) and present is not None and not isinstance(present, dict):
        raise InputError(
            f"flag {dotted}: cannot set keys inside {head}, whose value {present!r} is no JSON object",
            hint=f"give {head} as a JSON object, or drop one of the two",
        )
    merged = _merged(present, nested)
    if merged is not None:
        flags[head] = merged


def _merged(below: JsonValue, above: JsonValue) -> JsonValue:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    result = dict(below)
    for key, value in above.items():
        result[key] = _merged(result.get(key), value)
    return result


def merge_flags(below: Mapping[str, FlagValue], above: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """The flags of `below` with those of `above` on top; dotted names and JSON objects merge key by key."""
    result: dict[str, FlagValue] = {}
    for source in (below, above):
        for name, value in source.items():
            set_flag(result, name, value)
    return result


def leaf_flags(flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
    """Every setting as a dotted flag: JSON objects are opened down to their last keys.

    >>> leaf_flags({"speculative-config": {"method": "ngram"}, "max-num-seqs": 8})
    ('speculative-config.method', 'max-num-seqs')
    """
    leaves: list[str] = []

    def walk(path: str, value: JsonValue) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                walk(f"{path}.{key}", inner)
        else:
            leaves.append(path)

    for name, value in flags.items():
        walk(canonical_flag(name), value)
    return tuple(leaves)


def overlap(one: str, other: str) -> bool:
    """Whether two dotted flags set the same thing, or one sets a part of the other.

    >>> overlap("speculative-config", "speculative-config.method")
    True
    >>> overlap("speculative-config.model", "speculative-config.method")
    False
    """
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
