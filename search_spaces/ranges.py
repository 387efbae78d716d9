"""Parameters that range over numbers: whole ones, others, and memory in GiB."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from optimizer.core.engine_config import FlagValue
from optimizer.core.errors import InputError
from optimizer.core.record import ParamValue
from optimizer.search_spaces.flag_paths import get_flag
from optimizer.search_spaces.parameter_base import ParameterBase, Unread
from optimizer.search_spaces.values import FieldProblem

Side: TypeAlias = Literal["up", "down", "near"]
"""Not below what is wanted, not above it, or whichever is nearer."""

GIB: Final = 2**30
_FRACTION_DECIMALS: Final = 4
_SIGNIFICANT_DIGITS: Final = 6
_MOST: Final = 2**53
"""Whole numbers up to this are exact as floats, which the search computes with."""


class IntParameter(ParameterBase):
    """A whole number between two bounds, both included."""

    kind: Literal["int"]
    low: int = Field(ge=-_MOST, le=_MOST, description="Smallest value.")
    high: int = Field(ge=-_MOST, le=_MOST, description="Largest value; must lie above `low`.")
    log: bool = Field(default=False, description="Search on a logarithmic scale; needs `low` >= 1 and `step` 1.")
    step: int = Field(default=1, ge=1, description="Distance between neighbours; must divide `high - low`.")
    default: int | None = Field(default=None, description="vLLM's own or a usual value; must be one of the range.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _check_bounds(self.low, self.high, log=self.log, step=None if self.step == 1 else self.step)
        if self.default is not None and not self.contains(self.default):
            raise FieldProblem("default", f"{self.default} is not in {self.domain}")
        return self

    def contains(self, value: ParamValue) -> bool:
        """Whole numbers on the grid; 8.0 and true are none."""
        return type(value) is int and self.low <= value <= self.high and (value - self.low) % self.step == 0

    @property
    def steps(self) -> int:
        """How many steps lead from `low` to `high`: one less than there are values."""
        return (self.high - self.low) // self.step

    @property
    def values(self) -> range:
        """All of them, rising."""
        return range(self.low, self.high + 1, self.step)

    def on_grid(self, wanted: float, side: Side = "near") -> int:
        """The value next to a number; beyond an end of the range that end."""
        return int(_on_grid(self.low, self.high, self.step, wanted, side))

    @property
    def domain(self) -> str:
        """Such as `16..1024 (log)`."""
        return f"{self.low}..{self.high}{_scale(self.log, None if self.step == 1 else self.step)}"


class FloatParameter(ParameterBase):
    """A number between two bounds, both included."""

    kind: Literal["float"]
    low: float = Field(allow_inf_nan=False, description="Smallest value.")
    high: float = Field(allow_inf_nan=False, description="Largest value; must lie above `low`.")
    log: bool = Field(default=False, description="Search on a logarithmic scale; needs `low` > 0 and no `step`.")
    step: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Distance between neighbours; must divide `high - low`."
    )
    default: float | None = Field(default=None, description="vLLM's own or a usual value; must be one of the range.")
    unit: Literal["GiB"] | None = Field(
        default=None, description="GiB: the value is memory, and the flag gets the fraction it is of the device's."
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _check_bounds(self.low, self.high, log=self.log, step=self.step)
        if self.unit is not None and self.low <= 0:
            raise FieldProblem("low", f"{self.low:g} GiB is no amount of memory; it must be above 0")
        if self.default is not None and not self.contains(self.default):
            raise FieldProblem("default", f"{self.default:g} is not in {self.domain}")
        return self

    def contains(self, value: ParamValue) -> bool:
        """Numbers within the bounds and, with a step, on the grid (up to rounding)."""
        if isinstance(value, bool | str) or not math.isfinite(value):
            return False
        slack = 1e-9 * max(1.0, abs(self.low), abs(self.high))
        if not self.low - slack <= value <= self.high + slack:
            return False
        return abs(value - self.on_grid(value)) <= slack

    @property
    def steps(self) -> int | None:
        """How many steps lead from `low` to `high`; None without a step."""
        return None if self.step is None else round((self.high - self.low) / self.step)

    def on_grid(self, wanted: float, side: Side = "near") -> float:
        """The value next to a number, up to rounding; beyond an end of the range that end."""
        return _on_grid(self.low, self.high, self.step, wanted, side)

    @property
    def domain(self) -> str:
        """Such as `0.8..0.95 (step 0.01)`."""
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.low:g}..{self.high:g}{unit}{_scale(self.log, self.step)}"

    def to_flags(self, name: str, value: ParamValue, *, device_memory_bytes: int | None) -> dict[str, FlagValue]:
        """The number to six significant digits, or the fraction of the device's memory to four decimals.

        Raises:
            InputError: The value is in GiB and the device's memory is not known.
        """
        flag = self.flag_names(name)[0]
        if self.unit is None:
            rounded = float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
            return {flag: min(max(rounded, self.low), self.high)}
        if device_memory_bytes is None:
            raise InputError(
                f"parameter {name}: {value} GiB cannot become {flag}, because the device's memory is not known",
                hint=f"search {flag} as a fraction instead, without `unit: GiB`",
            )
        return {flag: memory_fraction(float(value), device_memory_bytes)}

    def read(
        self, name: str, flags: Mapping[str, FlagValue], *, device_memory_bytes: int | None
    ) -> ParamValue | Unread:
        """As for every parameter; a fraction becomes the GiB that `to_flags` would turn into the same fraction."""
        setting = get_flag(flags, self.flag_names(name)[0])
        if setting is None:
            return Unread.ABSENT
        if isinstance(setting, bool) or not isinstance(setting, int | float):
            return Unread.OUTSIDE
        value = float(setting) if self.unit is None else self._gib(float(setting), device_memory_bytes)
        return value if value is not None and self.contains(value) else Unread.OUTSIDE

    def _gib(self, fraction: float, device_memory_bytes: int | None) -> float | None:
        """The roundest amount of memory that is the same fraction, or None when no value of the range is."""
        if device_memory_bytes is None:
            return None
        gib = fraction * device_memory_bytes / GIB
        candidates = [round(gib, digits) for digits in range(7)] if self.step is None else [round(self.on_grid(gib), 9)]
        candidates += [self.low, self.high]
        same = [g for g in candidates if memory_fraction(g, device_memory_bytes) == fraction and self.contains(g)]
        return same[0] if same else None


def memory_fraction(gib: float, device_memory_bytes: int) -> float:
    """GiB as vLLM's fraction of the device's memory, to four decimals."""
    return round(gib * GIB / device_memory_bytes, _FRACTION_DECIMALS)


def _on_grid(low: float, high: float, step: float | None, wanted: float, side: Side) -> float:
    if wanted >= high:
        return high
    if wanted <= low:
        return low
    if step is None:
        return wanted
    steps = (wanted - low) / step
    # A number that lies on the grid stays there, whatever its binary tail.
    rounded = round(steps)
    if abs(steps - rounded) > 1e-9 * max(1.0, abs(steps)) and side != "near":
        rounded = math.ceil(steps) if side == "up" else math.floor(steps)
    return min(low + step * rounded, high)


def _scale(log: bool, step: float | None) -> str:
    return " (log)" if log else f" (step {step:g})" if step is not None else ""


def _check_bounds(low: float, high: float, *, log: bool, step: float | None) -> None:
    """Raises FieldProblem for a range that cannot be searched; `step` None stands for the finest."""
    if low >= high:
        raise FieldProblem("high", f"{high:g} must lie above `low`, which is {low:g}: this range is impossible")
    if log and low <= 0:
        raise FieldProblem("low", f"{low:g} must be above 0 on a logarithmic scale")
    if log and step is not None:
        raise FieldProblem("step", f"{step:g} excludes `log: true`: a logarithmic range has no steps")
    if step is None:
        return
    steps = (high - low) / step
    if steps < 1 - 1e-9:
        raise FieldProblem("step", f"{step:g} is wider than the range {low:g}..{high:g}")
    if abs(steps - round(steps)) > 1e-6:
        reached = low + step * math.floor(steps)
        raise FieldProblem("high", f"{high:g} is never reached from {low:g} in steps of {step:g}; {reached:g} would be")
