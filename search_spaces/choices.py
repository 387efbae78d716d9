"""Parameters that are one of a few: a switch, a value from a list, a bundle of flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from optimizer.core.engine_config import FlagValue, canonical_flag
from optimizer.core.record import ParamValue
from optimizer.search_spaces.flag_paths import get_flag, leaf_flags, overlap
from optimizer.search_spaces.parameter_base import ParameterBase, Unread
from optimizer.search_spaces.values import FieldProblem, Scalar, same_value, shown


class BoolParameter(ParameterBase):
    """A flag that is on or off: `--x` or `--no-x`."""

    kind: Literal["bool"]
    default: bool | None = Field(default=None, description="vLLM's own or a usual value.")

    def contains(self, value: ParamValue) -> bool:
        """True and False."""
        return isinstance(value, bool)

    @property
    def values(self) -> tuple[bool, ...]:
        """Both."""
        return (False, True)

    @property
    def domain(self) -> str:
        """Such as `true or false`."""
        return "true or false"


class ChoiceParameter(ParameterBase):
    """One of a list of values, or one of several bundles of flags."""

    kind: Literal["choice"]
    choices: tuple[int | float | str, ...] = Field(default=(), description="The values, all different.")
    sets: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict, description="Instead of `choices` and `flag`: each choice with all the flags it sets."
    )
    default: Scalar | None = Field(default=None, description="vLLM's own or a usual value; must be one of the choices.")

    @field_validator("choices", mode="before")
    @classmethod
    def _plain_choices(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{value!r} must be a list of values")
        for choice in value:
            if isinstance(choice, bool) or not isinstance(choice, int | float | str):
                raise ValueError(f"{choice!r} must be text or a number; put quotes around words such as on, off, no")
        repeated = [choice for i, choice in enumerate(value) if choice in value[:i]]
        if repeated:
            raise ValueError(f"{repeated[0]!r} stands there twice")
        return tuple(value)

    @field_validator("sets", mode="before")
    @classmethod
    def _plain_sets(cls, value: object) -> object:
        for choice, flags in value.items() if isinstance(value, dict) else ():
            for flag, setting in flags.items() if isinstance(flags, dict) else ():
                if setting is None:
                    raise FieldProblem(f"{choice}.{flag}", "has no value; write true or false for a plain flag")
        return value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if bool(self.choices) == bool(self.sets):
            raise FieldProblem("choices", "needs either `choices` (values of one flag) or `sets` (flags per choice)")
        if self.sets and self.flag is not None:
            raise FieldProblem("flag", f"{self.flag!r} has no meaning beside `sets`, which names its flags itself")
        if self.default is not None and not self.contains(self.default):
            raise FieldProblem("default", f"{self.default!r} is not one of {self.domain}")
        return self

    @property
    def values(self) -> tuple[int | float | str, ...]:
        """All choices, in the order they were written."""
        return self.choices or tuple(self.sets)

    @property
    def is_ordered(self) -> bool:
        """Whether the choices are rising numbers, so that neighbours are alike."""
        numbers = [choice for choice in self.values if not isinstance(choice, str)]
        return len(numbers) == len(self.values) and numbers == sorted(numbers)

    @property
    def domain(self) -> str:
        """Such as `16, 32, 64`."""
        return ", ".join(shown(choice) for choice in self.values)

    def flag_names(self, name: str) -> tuple[str, ...]:
        """The flag of `choices`, or every flag that one of the `sets` names."""
        if not self.sets:
            return super().flag_names(name)
        return tuple(dict.fromkeys(leaf for flags in self.sets.values() for leaf in leaf_flags(_given(flags))))

    def contains(self, value: ParamValue) -> bool:
        """One of the choices."""
        return any(same_value(value, choice) for choice in self.values)

    def to_flags(self, name: str, value: ParamValue, *, device_memory_bytes: int | None) -> dict[str, FlagValue]:
        """The value of the one flag, or the bundle of flags that belongs to the choice."""
        if self.sets:
            return _given(self.sets[str(value)])
        return super().to_flags(name, value, device_memory_bytes=device_memory_bytes)

    def read(
        self, name: str, flags: Mapping[str, FlagValue], *, device_memory_bytes: int | None
    ) -> ParamValue | Unread:
        """The choice whose flags are all there; the one with the most flags when several are.

        A choice that sets nothing is read when none of the flags of the others is there.
        """
        if not self.sets:
            return self._choice(super().read(name, flags, device_memory_bytes=device_memory_bytes))
        present = {flag for flag in self.flag_names(name) if get_flag(flags, flag) is not None}
        fitting = [choice for choice, bundle in self.sets.items() if _holds(bundle, flags, present)]
        if fitting:
            return max(fitting, key=lambda choice: len(self.sets[choice]))
        return Unread.OUTSIDE if present else Unread.ABSENT

    def _choice(self, value: ParamValue | Unread) -> ParamValue | Unread:
        return next((choice for choice in self.choices if same_value(choice, value)), value)


def _given(flags: Mapping[str, JsonValue]) -> dict[str, FlagValue]:
    return {canonical_flag(name): value for name, value in flags.items() if value is not None}


def _holds(bundle: Mapping[str, JsonValue], flags: Mapping[str, FlagValue], present: set[str]) -> bool:
    given = _given(bundle)
    leaves = leaf_flags(given)
    if any(not any(overlap(flag, leaf) for leaf in leaves) for flag in present):
        return False
    return all(same_value(get_flag(flags, leaf), _leaf(given, leaf)) for leaf in leaves)


def _leaf(bundle: Mapping[str, FlagValue], leaf: str) -> JsonValue:
    """The value of one leaf of a bundle, whose own keys may be dotted."""
    for name, value in bundle.items():
        if leaf == name:
            return value
        if leaf.startswith(f"{name}.") and isinstance(value, dict):
            return get_flag({"x": value}, f"x{leaf.removeprefix(name)}")
    return None
