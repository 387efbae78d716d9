"""Takes parameters out of a space because their flag has been given a fixed value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optimizer.core.engine_config import FlagValue
from optimizer.core.record import ParamValue
from optimizer.search_spaces.choices import ChoiceParameter
from optimizer.search_spaces.conditions import depth_first
from optimizer.search_spaces.flag_paths import get_flag, leaf_flags, overlap
from optimizer.search_spaces.parameter import Parameter
from optimizer.search_spaces.parameter_base import Unread
from optimizer.search_spaces.space import SearchSpace
from optimizer.search_spaces.values import same_value, shown


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A space after flags were fixed.

    Attributes:
        space: What is left to search.
        pinned_flags: Dotted flags that the space now sets itself, wherever their parameter exists; they must not be
            set outside it as well.
        notes: One remark for each parameter that left or changed.
    """

    space: SearchSpace
    pinned_flags: tuple[str, ...]
    notes: tuple[str, ...]


def fix_flags(space: SearchSpace, flags: Mapping[str, FlagValue], *, origin: str) -> Narrowed:
    """The space without the parameters whose flags are fixed.

    A parameter that exists only under a condition keeps its condition and is pinned to the one value, so that its
    flag is not set where it has no meaning. What depends on a parameter that left goes with it, unless the fixed
    value is the one it needs.

    Args:
        space: The space before.
        flags: The fixed flags, JSON objects merged.
        origin: What fixed them, for the notes, such as `--set`.
    """
    narrowing = _Narrowing(flags, origin, left=dict(space.parameters))
    for name in depth_first(space.parameters):
        narrowing.visit(name)
    kept = {name: narrowing.left[name] for name in space.parameters if name in narrowing.left}
    return Narrowed(SearchSpace(kept, space.rules), tuple(narrowing.pinned_flags), tuple(narrowing.notes))


@dataclass(slots=True)
class _Narrowing:
    """The work in progress; parameters are visited after those that their conditions name."""

    flags: Mapping[str, FlagValue]
    origin: str
    left: dict[str, Parameter]
    fixed: dict[str, ParamValue | None] = field(default_factory=dict)
    """Parameters that left or were pinned, with their one value; None when the space has no such value."""
    pinned: dict[str, ParamValue] = field(default_factory=dict)
    """Parameters that were pinned, with the one choice they have now."""
    pinned_flags: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def visit(self, name: str) -> None:
        parameter = self.left[name]
        unmet = [
            other
            for other, value in parameter.when.items()
            if other in self.fixed and not same_value(self.fixed[other], value)
        ]
        if unmet:
            self._remove(name, None, f"it depends on {unmet[0]}, which {self.origin} fixed")
            return
        when = {
            other: self.pinned.get(other, value)
            for other, value in parameter.when.items()
            if other in self.pinned or other not in self.fixed
        }
        self.left[name] = parameter = parameter.model_copy(update={"when": when})
        leaves = leaf_flags(self.flags)
        mine = [flag for flag in parameter.flag_names(name) if any(overlap(flag, leaf) for leaf in leaves)]
        if not mine:
            return
        reading = parameter.read(name, self.flags, device_memory_bytes=None)
        value = None if isinstance(reading, Unread) else reading
        if when and len(parameter.flag_names(name)) == 1:
            self._pin(name, parameter, mine[0], value)
        else:
            self._remove(name, value, f"{self.origin} fixed {', '.join(mine)}")

    def _remove(self, name: str, value: ParamValue | None, why: str) -> None:
        del self.left[name]
        self.fixed[name] = value
        self.notes.append(f"parameter {name} is no longer searched: {why}")

    def _pin(self, name: str, parameter: Parameter, flag: str, value: ParamValue | None) -> None:
        label = shown(get_flag(self.flags, flag))
        self.left[name] = ChoiceParameter(
            kind="choice", sets={label: {flag: get_flag(self.flags, flag)}}, when=parameter.when, help=parameter.help
        )
        self.fixed[name], self.pinned[name] = value, label
        self.pinned_flags.append(flag)
        self.notes.append(f"parameter {name} is pinned to {label} wherever it exists: {self.origin} fixed {flag}")
