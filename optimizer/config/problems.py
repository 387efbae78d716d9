"""Turns the findings of pydantic into lines for a person: file, dotted key, the value, and what is allowed."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from optimizer.core.errors import InputError
from optimizer.search_spaces import FieldProblem

_SHOWN_CHARACTERS = 60
_SHOWN_PROBLEMS = 10
Location: typing.TypeAlias = tuple[int | str, ...]


def input_error(error: ValidationError, *, model: type[BaseModel], data: object, origin: str) -> InputError:
    """One InputError with a line for each finding.

    Args:
        error: What pydantic found.
        model: The model that was checked.
        data: What it was checked against, as read from the file.
        origin: The file.
    """
    # A misspelt key is unknown, and the right one is missing: the first says what to do.
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] == "missing")
    lines = [_line(detail, model, data) for detail in details]
    lines = list(dict.fromkeys(lines))
    more = [f"and {len(lines) - _SHOWN_PROBLEMS} more"] if len(lines) > _SHOWN_PROBLEMS else []
    return InputError("\n".join(f"{origin}: {line}" for line in lines[:_SHOWN_PROBLEMS] + more))


def _line(detail: ErrorDetails, model: type[BaseModel], data: object) -> str:
    tagged = detail["loc"]
    key = ".".join(str(part) for part in _without_tags(tagged, data))
    cause = detail.get("ctx", {}).get("error")
    kind = detail["type"]
    if kind == "extra_forbidden":
        allowed = _fields_at(model, tagged[:-1])
        suggestion = nearest(str(tagged[-1]), allowed) or f"; allowed: {', '.join(allowed)}"
        return f"{key}: unknown key{suggestion}"
    if kind == "missing":
        return f"{key}: is missing, and required"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        expected = str(detail.get("ctx", {}).get("expected_tags", _kinds_at(model, tagged))).replace("'", "")
        tag = detail.get("ctx", {}).get("tag")
        found = "is missing, and required" if tag is None else f"{tag!r} is not known"
        return f"{key}.kind: {found}; allowed: {expected}"
    if isinstance(cause, FieldProblem):
        return f"{key}.{cause.key}: {cause}" if key else f"{cause.key}: {cause}"
    if isinstance(cause, ValueError):
        return f"{key}: {cause}" if key else str(cause)
    return f"{key}: {_shortened(detail['input'])}: {_lower_first(detail['msg'])}"


def nearest(word: str, known: Sequence[str]) -> str:
    """The words `; did you mean X?`, or nothing when no known word is near."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:].removesuffix(".")


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _without_tags(location: Location, data: object) -> Location:
    """The location less the union tags that pydantic puts into it, told by walking the data."""
    kept: list[int | str] = []
    node = data
    for part in location:
        if isinstance(node, Mapping) and part not in node and part == node.get("kind"):
            continue
        kept.append(part)
        if isinstance(node, Mapping):
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            node = None
    return tuple(kept)


def _fields_at(model: type[BaseModel], location: Location) -> list[str]:
    """The keys that the model at a (tagged) location knows; empty where there is no model."""
    node: object = model
    for part in location:
        node = _step(node, part)
    models = _models(node)
    return list(dict.fromkeys(name for found in models for name in found.model_fields))


def _kinds_at(model: type[BaseModel], location: Location) -> str:
    node: object = model
    for part in location:
        node = _step(node, part)
    return ", ".join(kind for found in _models(node) for kind in _kind_of(found))


def _step(node: object, part: int | str) -> object:
    for found in _models(node):
        if part in found.model_fields:
            return found.model_fields[str(part)].annotation
        if part in _kind_of(found):
            return found
    arguments = typing.get_args(_bare(node))
    return arguments[-1] if typing.get_origin(_bare(node)) is dict else arguments[0] if arguments else None


def _bare(node: object) -> object:
    """An annotation without Annotated, and without the None of an optional."""
    if typing.get_origin(node) is typing.Annotated:
        return _bare(typing.get_args(node)[0])
    if typing.get_origin(node) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(node) if member is not type(None)]
        return _bare(members[0]) if len(members) == 1 else node
    return node


def _models(node: object) -> list[type[BaseModel]]:
    bare = _bare(node)
    members = typing.get_args(bare) if typing.get_origin(bare) in (typing.Union, types.UnionType) else (bare,)
    return [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]


def _kind_of(model: type[BaseModel]) -> tuple[str, ...]:
    field = model.model_fields.get("kind")
    return typing.get_args(field.annotation) if field is not None else ()
