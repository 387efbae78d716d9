"""What a flag is, or may become: one value on a command line, several in a search space."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from optimizer.core.engine_config import FlagValue, JsonValue
from optimizer.core.errors import InputError
from optimizer.core.record import ParamValue
from optimizer.search_spaces import FloatParameter, IntParameter, Parameter, get_flag, set_flag


class Origin(enum.Enum):
    """Where the values of a setting come from."""

    GIVEN = "given"
    """One value, from a command line or the fixed flags of a space."""
    SEARCHED = "searched"
    """A parameter of the space ranges over them."""
    DEFAULT = "default"
    """Nothing sets the flag; this is what vLLM takes then."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The values that a flag has or may get.

    Attributes:
        flag: Canonical, perhaps dotted.
        values: The value, the choices, or both ends of a range.
        origin: Where they come from.
        where: What a person changes to change it.
        optional: Some proposals do not set the flag at all.
        usual: What the space calls the parameter's default: vLLM's own or a usual value.
    """

    flag: str
    values: tuple[JsonValue, ...]
    origin: Origin
    where: str
    optional: bool = False
    usual: JsonValue = None

    @property
    def numbers(self) -> tuple[float, ...]:
        """The values that are numbers, rising; `auto` and the like left out."""
        return tuple(sorted(v for v in self.values if isinstance(v, int | float) and not isinstance(v, bool)))

    @property
    def lowest(self) -> float | None:
        """The smallest number, or None when no value is one."""
        return self.numbers[0] if self.numbers else None

    @property
    def highest(self) -> float | None:
        """The largest number, or None when no value is one."""
        return self.numbers[-1] if self.numbers else None

    @property
    def is_given(self) -> bool:
        """True unless the value is vLLM's own choice."""
        return self.origin is not Origin.DEFAULT

    @property
    def is_searched(self) -> bool:
        """True when some proposal has another value, or none."""
        return self.origin is Origin.SEARCHED and (self.optional or len(self.values) > 1)

    def is_always(self, value: JsonValue) -> bool:
        """Whether it has this one value in every proposal; True is not 1."""
        return not self.is_searched and any(type(v) is type(value) and v == value for v in self.values)

    def up_to(self) -> str:
        """Its largest number in words."""
        return self._words("goes up to", self.highest)

    def down_to(self) -> str:
        """Its smallest number in words."""
        return self._words("goes down to", self.lowest)

    def holds(self, value: JsonValue) -> str:
        """One of its values in words."""
        return self._words("allows", value)

    def _words(self, verb: str, value: JsonValue) -> str:
        if self.is_searched:
            return f"the range of {self.flag} {verb} {shown(value)}"
        if self.origin is Origin.DEFAULT:
            return f"{self.flag} is not set and {shown(value)} by default"
        return f"{self.flag} is {shown(value)}"


def shown(value: JsonValue) -> str:
    """A value in a message: no exponent for whole numbers, four digits for others."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    return str(int(value)) if isinstance(value, float) else str(value)


def setting_of_parameter(
    name: str, parameter: Parameter, flag: str, *, device_memory_bytes: int | None
) -> Setting | None:
    """What a parameter lets a flag be, or None when it does not set it (or in GiB of a device of unknown memory)."""
    if flag not in parameter.flag_names(name):
        return None
    values: list[JsonValue] = []
    optional = bool(parameter.when)
    for choice in _choices(parameter):
        try:
            given = parameter.to_flags(name, choice, device_memory_bytes=device_memory_bytes)
        except InputError:
            return None
        flags: dict[str, FlagValue] = {}
        for other, setting in given.items():
            set_flag(flags, other, setting)
        value = get_flag(flags, flag)
        if value is None:
            optional = True
        elif not any(type(v) is type(value) and v == value for v in values):
            values.append(value)
    usual = None if parameter.default is None else parameter.default
    return Setting(flag, tuple(values), Origin.SEARCHED, f"parameters.{name}", optional, usual)


def setting_of_flags(flags: Mapping[str, FlagValue], flag: str, *, where: str, origin: Origin) -> Setting | None:
    """A flag's one value, or None where it is not set."""
    value = get_flag(flags, flag)
    return None if value is None else Setting(flag, (value,), origin, where)


def _choices(parameter: Parameter) -> tuple[ParamValue, ...]:
    """Every choice, or both ends of a range."""
    if isinstance(parameter, IntParameter | FloatParameter):
        return (parameter.low, parameter.high)
    return parameter.values
