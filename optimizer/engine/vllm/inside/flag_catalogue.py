"""Run by the engine's own Python: prints every flag of its vLLM's server as one line of JSON. Starts no engine.

    ENGINE_PYTHON flag_catalogue.py

All is read from vLLM's parser, so that it holds for the version that is installed. The shape of the JSON is
`optimizer.engine.vllm.catalogue.FlagCatalogue`. What vLLM prints while it is imported goes to stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import json
import os
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

PARSER_MODULES = (
    "vllm.entrypoints.common.cli_args",  # 0.33
    "vllm.entrypoints.launchers.cli_args",  # 0.32
    "vllm.entrypoints.openai.cli_args",  # before
)
"""Where `make_arg_parser` lies, newest first."""

_DEEPEST = 3
_REFUSED = object()
_CONVERSION_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    AssertionError,
    RuntimeError,
    argparse.ArgumentTypeError,
)


def describe_parser(parser: argparse.ArgumentParser, configs: dict[str, type]) -> list[dict[str, Any]]:
    """Every flag of a parser, by name.

    Args:
        parser: Any argparse parser.
        configs: Flag name to the dataclass that its JSON becomes, for flags whose own type is a bare `json.loads`.
    """
    spellings: dict[argparse.Action, list[str]] = {}
    for spelling, action in parser._option_string_actions.items():  # 0.33 keeps some out of `action.option_strings`
        spellings.setdefault(action, []).append(spelling)
    flags = [_described(action, found, configs) for action, found in spellings.items() if action.dest != "help"]
    return sorted(flags, key=lambda flag: str(flag["name"]))


def _described(action: argparse.Action, spellings: list[str], configs: dict[str, type]) -> dict[str, Any]:
    long = [spelling for spelling in spellings if spelling.startswith("--")]
    name = _name(action, long)
    off = [spelling for spelling in long if _turns_off(spelling, name, long)]
    kind, nullable, config = _value_kind(action)
    if kind in ("json", "json_or_text"):
        config = config or configs.get(name.replace("-", ""))
    return {
        "name": name,
        "on": [spelling for spelling in long if spelling not in off],
        "off": off,
        "short": [spelling for spelling in spellings if not spelling.startswith("--")],
        "kind": kind,
        "words": _words(action),
        "nullable": nullable,
        "choices": _choices(action.choices),
        "folds": callable(action.type) and _converted(action.type, "A-B") == "a_b",
        "default": _plain(action.default),
        "help": " ".join((action.help or "").split("\n\n")[0].replace("%%", "%").split()),
        "keys": None if config is None else _keys(config, _DEEPEST),
    }


def _name(action: argparse.Action, long: list[str]) -> str:
    by_dest = action.dest.replace("_", "-")
    return by_dest if f"--{by_dest}" in long or not long else long[0].removeprefix("--")


def _turns_off(spelling: str, name: str, long: list[str]) -> bool:
    """Whether a spelling is the opposite of another: `--no-x`, and since 0.33 `--disable-x` beside `--enable-x`."""
    if spelling.startswith("--no-") and f"--{spelling.removeprefix('--no-')}" in long:
        return True
    for mine, opposite in (("enable-", "disable-"), ("disable-", "enable-")):
        if name.startswith(mine) and spelling == f"--{opposite}{name.removeprefix(mine)}":
            return True
    return False


def _words(action: argparse.Action) -> str:
    """How many words follow the flag: none, one, many (one or more), or optional (none or one)."""
    if action.nargs == 0:
        return "none"
    if action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs > 1):
        return "many"
    return "optional" if action.nargs == "?" else "one"


def _value_kind(action: argparse.Action) -> tuple[str, bool, type | None]:
    """What a word of the flag must be, whether `None` is one, and the dataclass that it becomes.

    The converters are closures without a readable type, so that they are tried on a few words.
    """
    if action.nargs == 0:
        return "switch", False, None
    convert = action.type
    if convert is None or convert is str:
        return "text", False, None
    if not callable(convert):
        return "any", False, None
    nullable = _converted(convert, "None") is None
    config = next(_dataclasses_inside(convert, set()), None)
    if config is not None:
        return "json", nullable, config
    if isinstance(_converted(convert, '{"a": 1}'), dict):
        return ("json_or_text" if _converted(convert, "a") == "a" else "json"), nullable, None
    return _scalar_kind(convert), nullable, None


def _scalar_kind(convert: Callable[[str], Any]) -> str:
    seven = _converted(convert, "7")
    if isinstance(seven, str):
        return "text" if seven == "7" else "any"
    if isinstance(seven, float):
        return "number"
    if isinstance(seven, int) and not isinstance(seven, bool):
        if _converted(convert, "8k") != 8000:
            return "whole"
        return "size" if _converted(convert, "auto") is _REFUSED else "size_or_auto"
    # What knows a few words only, such as a parser of an enum: the choices tell.
    return "text" if seven is _REFUSED and _converted(convert, "auto") == "auto" else "any"


def _converted(convert: Callable[[str], Any], word: str) -> Any:
    try:
        return convert(word)
    except _CONVERSION_ERRORS:
        return _REFUSED


def _dataclasses_inside(function: Any, seen: set[int]) -> Iterator[type]:
    """The dataclasses that a converter holds in its closure or its defaults."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, type):
        if dataclasses.is_dataclass(function):
            yield function
        return
    if isinstance(function, types.FunctionType):
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        for inner in (*cells, *(function.__defaults__ or ())):
            yield from _dataclasses_inside(inner, seen)


def _keys(config: type, depth: int) -> dict[str, Any]:
    """The keys of a JSON object that becomes this dataclass; vLLM's own configs forbid all others."""
    try:
        hints = typing.get_type_hints(config)
    except (NameError, TypeError, AttributeError):
        hints = {}
    fields = [field for field in dataclasses.fields(config) if field.init]
    checked = _own_readers(config)
    return {field.name: _key(hints.get(field.name), depth, free=field.name in checked) for field in fields}


def _own_readers(config: type) -> set[str]:
    """Fields that the dataclass reads in a way of its own before it checks their type."""
    decorators = getattr(config, "__pydantic_decorators__", None)
    validators = getattr(decorators, "field_validators", {}) or {}
    return {
        name
        for found in validators.values()
        if getattr(found.info, "mode", "after") in ("before", "plain")
        for name in found.info.fields
    }


def _key(hint: Any, depth: int, *, free: bool) -> dict[str, Any]:
    members = [member for member in _members(hint) if member is not type(None)]
    described: dict[str, Any] = {"kind": "any", "choices": None, "keys": None}
    if len(members) != 1:
        numbers = {int, float}
        return described if free or set(members) != numbers else {**described, "kind": "number"}
    only = members[0]
    if dataclasses.is_dataclass(only) and isinstance(only, type):
        return {**described, "kind": "json", "keys": _keys(only, depth - 1) if depth > 1 else None}
    if free:
        return described
    if typing.get_origin(only) is typing.Literal and all(isinstance(arg, str) for arg in typing.get_args(only)):
        return {**described, "kind": "text", "choices": sorted(typing.get_args(only))}
    kinds = {bool: "switch", int: "whole", float: "number", str: "text"}
    return {**described, "kind": kinds.get(only, "any") if isinstance(only, type) else "any"}


def _members(hint: Any) -> list[Any]:
    """The members of a union, and of unions inside it, without Annotated. Literals of one union become one."""
    if typing.get_origin(hint) is typing.Annotated:
        return _members(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [member for inner in typing.get_args(hint) for member in _members(inner)]
    return [hint]


def _choices(choices: Any) -> list[Any] | None:
    if choices is None:
        return None
    return [choice.value if isinstance(choice, enum.Enum) else _plain(choice) for choice in choices]


def _plain(value: Any) -> Any:
    """The value where JSON can hold it, else None: a default is for reading only."""
    if value is None or isinstance(value, bool | int | str):
        return None if value == argparse.SUPPRESS else value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return None


def _server_parser() -> argparse.ArgumentParser:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    _settle_platform()
    for name in PARSER_MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        parser: argparse.ArgumentParser = module.make_arg_parser(FlexibleArgumentParser())
        return parser
    sys.exit(f"no parser of the server's flags in any of {', '.join(PARSER_MODULES)}")


def _settle_platform() -> None:
    """Lets a build for GPUs show its flags where no GPU is seen: before 0.33 its parser asks for the device."""
    from vllm import platforms

    if not platforms.current_platform.device_type:
        from vllm.platforms.cpu import CpuPlatform

        platforms._current_platform = CpuPlatform()


def _config_classes() -> dict[str, type]:
    """`speculativeconfig` to the dataclass `SpeculativeConfig`, and so on."""
    import vllm.config

    classes = {name.lower(): found for name, found in vars(vllm.config).items() if isinstance(found, type)}
    return {name: found for name, found in classes.items() if dataclasses.is_dataclass(found)}


def main() -> None:
    """Reads vLLM's parser and prints what it holds."""
    answer = os.dup(1)
    os.dup2(2, 1)
    # Without it, vLLM leaves the help texts out.
    sys.argv = [sys.argv[0], "--help"]
    parser = _server_parser()
    import vllm
    from vllm import envs

    flags = describe_parser(parser, _config_classes())
    variables = sorted(name for name in envs.environment_variables if name.startswith("VLLM_"))
    with os.fdopen(answer, "w", encoding="utf-8") as stream:
        json.dump({"version": vllm.__version__, "flags": flags, "variables": variables}, stream)


if __name__ == "__main__":
    main()
