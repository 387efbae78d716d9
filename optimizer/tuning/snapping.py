"""The value of a parameter that lies next to a wanted number."""

from __future__ import annotations

import math
from typing import Literal

from optimizer.core.record import ParamValue
from optimizer.search_spaces import ChoiceParameter, FloatParameter, IntParameter, Parameter

Side = Literal["up", "down", "near"]
"""Not below what is wanted, not above it, or whichever is nearer; where there is none on that side, the last one."""

_DECIMALS = 9


def snapped(parameter: Parameter, wanted: float, side: Side) -> ParamValue | None:
    """A legal value; None for a parameter that has no numbers."""
    match parameter:
        case IntParameter():
            return int(_on_grid(parameter.low, parameter.high, parameter.step, wanted, side))
        case FloatParameter():
            return round(_on_grid(parameter.low, parameter.high, parameter.step, wanted, side), _DECIMALS)
        case ChoiceParameter():
            return _choice(parameter, wanted, side)
        case _:
            return None


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


def _choice(parameter: ChoiceParameter, wanted: float, side: Side) -> ParamValue | None:
    numbers = sorted(value for value in parameter.choices if not isinstance(value, str))
    if not numbers:
        return None
    above = next((value for value in numbers if value >= wanted), numbers[-1])
    below = next((value for value in reversed(numbers) if value <= wanted), numbers[0])
    if side != "near":
        return above if side == "up" else below
    return min(above, below, key=lambda value: abs(math.log(max(value, 1e-9) / max(wanted, 1e-9))))
