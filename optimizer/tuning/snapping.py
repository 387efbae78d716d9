"""The value of a parameter that lies next to a wanted number."""

from __future__ import annotations

import math

from optimizer.core.record import ParamValue
from optimizer.search_spaces import ChoiceParameter, FloatParameter, IntParameter, Parameter, Side

_DECIMALS = 9


def snapped(parameter: Parameter, wanted: float, side: Side) -> ParamValue | None:
    """A legal value, the last one where there is none on that side; None for a parameter that has no numbers."""
    match parameter:
        case IntParameter():
            return parameter.on_grid(wanted, side)
        case FloatParameter():
            return round(parameter.on_grid(wanted, side), _DECIMALS)
        case ChoiceParameter():
            return _choice(parameter, wanted, side)
        case _:
            return None


def _choice(parameter: ChoiceParameter, wanted: float, side: Side) -> ParamValue | None:
    numbers = sorted(value for value in parameter.choices if not isinstance(value, str))
    if not numbers:
        return None
    above = next((value for value in numbers if value >= wanted), numbers[-1])
    below = next((value for value in reversed(numbers) if value <= wanted), numbers[0])
    if side != "near":
        return above if side == "up" else below
    return min(above, below, key=lambda value: abs(math.log(max(value, 1e-9) / max(wanted, 1e-9))))
