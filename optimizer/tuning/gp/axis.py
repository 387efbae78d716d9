"""One parameter as a number line.

Ranges and rising choices have codes that lie as their values do; of other choices the code is a mere index.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter, Parameter
from optimizer.search_spaces.values import same_value

_SIGNIFICANT_DIGITS = 4
"""Of a number drawn from a range without steps: more would only make settings look different."""
_CENTRE = 0.5
_STEPS = (0.03, 0.1, 0.3)
"""Moves along a range, as shares of it."""
_MOST_NEIGHBOURS = 12


@dataclass(frozen=True, slots=True)
class Axis:
    """A parameter of the space.

    Codes are the index of a choice, or the place in a range from 0 to 1 on its own scale; NaN is a value that is not
    set, or one that the parameter does not range over.
    """

    name: str
    parameter: Parameter

    @property
    def values(self) -> tuple[ParamValue, ...]:
        """Of a choice; empty for a range."""
        return self.parameter.values if isinstance(self.parameter, ChoiceParameter | BoolParameter) else ()

    @property
    def is_ordered(self) -> bool:
        """Whether neighbouring codes are alike."""
        return not isinstance(self.parameter, ChoiceParameter) or self.parameter.is_ordered

    @property
    def reach(self) -> float:
        """The largest code."""
        return float(max(len(self.values) - 1, 1))

    def code(self, value: ParamValue) -> float:
        """Of a value; NaN when the parameter does not range over it."""
        parameter = self.parameter
        if not parameter.contains(value):
            return math.nan
        if isinstance(parameter, IntParameter | FloatParameter):
            return float(_places(parameter, np.array([float(value)]))[0])
        return float(next(index for index, choice in enumerate(self.values) if same_value(choice, value)))

    def value(self, code: float) -> ParamValue:
        """The value whose code lies nearest."""
        parameter = self.parameter
        if isinstance(parameter, IntParameter | FloatParameter):
            number = float(_numbers(parameter, np.array([code]))[0])
            return round(number) if isinstance(parameter, IntParameter) else number
        return self.values[round(code)]

    def snapped(self, codes: FloatArray) -> FloatArray:
        """The codes of the nearest values; shape kept."""
        if isinstance(self.parameter, IntParameter | FloatParameter):
            return _places(self.parameter, _numbers(self.parameter, codes))
        return np.clip(np.round(codes), 0.0, self.reach)

    def drawn(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Random codes, shape (count,)."""
        if self.values:
            return rng.integers(len(self.values), size=count).astype(float)
        return self.snapped(rng.random(count))

    def neighbours(self, code: float) -> FloatArray:
        """Codes of other values, the nearest first: every other choice, or steps along the range. Shape (k,)."""
        start = _CENTRE if math.isnan(code) else code
        if self.values:
            others = np.array([index for index in range(len(self.values)) if index != code], dtype=float)
            return others[np.argsort(np.abs(others - start), kind="stable")][:_MOST_NEIGHBOURS]
        moves = np.array([start + sign * step for step in self._steps() for sign in (1, -1)] + [0.0, 1.0])
        near = self.snapped(np.clip(moves, 0.0, 1.0))
        _, first = np.unique(near, return_index=True)
        distinct = near[np.sort(first)]
        away: FloatArray = distinct[distinct != code]
        return away

    def _steps(self) -> tuple[float, ...]:
        parameter = self.parameter
        if isinstance(parameter, IntParameter) and not parameter.log:
            return (parameter.step / (parameter.high - parameter.low), *_STEPS)
        return _STEPS


def _numbers(parameter: IntParameter | FloatParameter, codes: FloatArray) -> FloatArray:
    """The values of a range that lie nearest to places in it; shape kept."""
    low, high = _ends(parameter)
    numbers = low + np.clip(codes, 0.0, 1.0) * (high - low)
    if parameter.log:
        numbers = np.exp(numbers)
    if parameter.step is not None:
        numbers = parameter.low + parameter.step * np.round((numbers - parameter.low) / parameter.step)
    else:
        digits = _SIGNIFICANT_DIGITS - 1 - np.floor(np.log10(np.maximum(np.abs(numbers), 1e-300)))
        scale = 10.0**digits
        numbers = np.round(numbers * scale) / scale
    if isinstance(parameter, FloatParameter):
        numbers = np.array([float(f"{number:.12g}") for number in numbers])
    return np.clip(numbers, parameter.low, parameter.high)


def _places(parameter: IntParameter | FloatParameter, numbers: FloatArray) -> FloatArray:
    """From 0 to 1 on the range's own scale; shape kept."""
    low, high = _ends(parameter)
    return np.clip(((np.log(numbers) if parameter.log else numbers) - low) / (high - low), 0.0, 1.0)


def _ends(parameter: IntParameter | FloatParameter) -> tuple[float, float]:
    if parameter.log:
        return math.log(parameter.low), math.log(parameter.high)
    return float(parameter.low), float(parameter.high)
