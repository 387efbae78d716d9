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
        case FloatParameter():
            return tidy(_number(parameter, rng), distribution_of(parameter))
        case IntParameter() if parameter.log:
            return _whole(parameter, rng)
        case _:
            return parameter.values[int(rng.integers(len(parameter.values)))]


def neighbour(parameter: Parameter, value: ParamValue, rng: np.random.Generator) -> ParamValue:
    """The value, or one not far from it: a step of some 3 % of a range, or now and then another choice."""
    if isinstance(parameter, ChoiceParameter | BoolParameter) or isinstance(value, str):
        return random_value(parameter, rng) if rng.random() < _OTHER_CHOICE else value
    low, high = parameter.low, parameter.high
    if parameter.log:
        moved = math.exp(math.log(value) + rng.normal() * _STEP_SHARE * math.log(high / low))
    else:
        moved = value + rng.normal() * _STEP_SHARE * (high - low)
    return tidy(parameter.on_grid(moved), distribution_of(parameter))


def _whole(parameter: IntParameter, rng: np.random.Generator) -> int:
    # Half a step beyond both ends, so that they are as likely as their neighbours.
    value = math.exp(rng.uniform(math.log(parameter.low - 0.5), math.log(parameter.high + 0.5)))
    return parameter.on_grid(value)


def _number(parameter: FloatParameter, rng: np.random.Generator) -> float:
    step, steps = parameter.step, parameter.steps
    if step is not None and steps is not None:
        return min(parameter.low + step * int(rng.integers(steps + 1)), parameter.high)
    if parameter.log:
        value = math.exp(rng.uniform(math.log(parameter.low), math.log(parameter.high)))
    else:
        value = parameter.low + (parameter.high - parameter.low) * rng.random()
    return min(max(value, parameter.low), parameter.high)
