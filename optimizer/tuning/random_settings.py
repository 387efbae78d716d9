"""Settings drawn at random, each parameter for itself and evenly on its own scale."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter, Parameter
from optimizer.tuning.distributions import distribution_of, tidy

_STEP_SHARE = 0.03
_OTHER_CHOICE = 0.1


def random_setting(parameters: Mapping[str, Parameter], rng: np.random.Generator) -> dict[str, ParamValue]:
    """A value for each parameter, whether it exists beside the others or not."""
    return {name: random_value(parameter, rng) for name, parameter in parameters.items()}


def random_value(parameter: Parameter, rng: np.random.Generator) -> ParamValue:
    """One value of the parameter: every choice and every step alike, a range evenly on its scale."""
    match parameter:
        case ChoiceParameter():
            return parameter.values[int(rng.integers(len(parameter.values)))]
        case BoolParameter():
            return bool(rng.integers(2))
        case IntParameter():
            return _whole(parameter, rng)
        case FloatParameter():
            return tidy(_number(parameter, rng), distribution_of(parameter))


def neighbour(parameter: Parameter, value: ParamValue, rng: np.random.Generator) -> ParamValue:
    """The value, or one not far from it: a step of some 3 % of a range, or now and then another choice."""
    if isinstance(parameter, ChoiceParameter | BoolParameter) or isinstance(value, str):
        return random_value(parameter, rng) if rng.random() < _OTHER_CHOICE else value
    low, high = parameter.low, parameter.high
    if parameter.log:
        moved = math.exp(math.log(value) + rng.normal() * _STEP_SHARE * math.log(high / low))
    else:
        moved = value + rng.normal() * _STEP_SHARE * (high - low)
    step = parameter.step
    if step is not None:
        moved = low + step * round((moved - low) / step)
    inside = min(max(moved, low), high)
    return round(inside) if isinstance(parameter, IntParameter) else tidy(inside, distribution_of(parameter))


def _whole(parameter: IntParameter, rng: np.random.Generator) -> int:
    if not parameter.log:
        steps = (parameter.high - parameter.low) // parameter.step
        return parameter.low + parameter.step * int(rng.integers(steps + 1))
    # Half a step beyond both ends, so that they are as likely as their neighbours.
    value = math.exp(rng.uniform(math.log(parameter.low - 0.5), math.log(parameter.high + 0.5)))
    return min(max(round(value), parameter.low), parameter.high)


def _number(parameter: FloatParameter, rng: np.random.Generator) -> float:
    if parameter.step is not None:
        steps = round((parameter.high - parameter.low) / parameter.step)
        return min(parameter.low + parameter.step * int(rng.integers(steps + 1)), parameter.high)
    if parameter.log:
        value = math.exp(rng.uniform(math.log(parameter.low), math.log(parameter.high)))
    else:
        value = parameter.low + (parameter.high - parameter.low) * rng.random()
    return min(max(value, parameter.low), parameter.high)
