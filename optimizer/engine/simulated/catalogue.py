"""The flags of the simulated engine, in the form in which those of a vLLM are kept."""

from __future__ import annotations

import argparse

from optimizer.engine.simulated.command_line import build_parser, human_int, human_int_or_auto
from optimizer.engine.vllm.catalogue import FlagCatalogue, FlagSpec, Kind

_KINDS: dict[object, Kind] = {int: "whole", float: "number", human_int: "size", human_int_or_auto: "size_or_auto"}


def simulated_catalogue(version: str) -> FlagCatalogue:
    """What it accepts. It does not look at the values of flags that it ignores, so that any of them is right."""
    spellings: dict[argparse.Action, list[str]] = {}
    for spelling, action in build_parser()._option_string_actions.items():
        spellings.setdefault(action, []).append(spelling)
    flags = [_flag(action, found) for action, found in spellings.items() if action.dest != "help"]
    return FlagCatalogue(version=version, flags=tuple(flags), variables=frozenset())


def _flag(action: argparse.Action, spellings: list[str]) -> FlagSpec:
    long = [spelling for spelling in spellings if spelling.startswith("--")]
    switch = action.nargs == 0
    return FlagSpec(
        name=long[0].removeprefix("--"),
        on=tuple(long[:1] if switch else long),
        off=tuple(long[1:] if switch else ()),
        short=tuple(spelling for spelling in spellings if spelling not in long),
        kind="switch" if switch else _KINDS.get(action.type, "any"),
        words="none" if switch else "many" if action.nargs == "+" else "one",
        nullable=False,
        choices=None if action.choices is None else tuple(str(choice) for choice in action.choices),
        folds=False,
        default=None,
        help=action.help or "",
        keys=None,
    )
