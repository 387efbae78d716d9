"""The setting next to a given one that is acceptable: fewest changes first, then the smallest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter, Parameter, SearchSpace
from optimizer.tuning.distributions import distribution_of, tidy

Params: TypeAlias = dict[str, ParamValue]
Accepts: TypeAlias = Callable[[Params], bool]

GRID_POINTS = 9
"""Values of a range that are tried, both ends among them."""
MOST_CHANGES = 2
"""More changes at once are left to random draws: eight parameters of nine values have 40,000 triples."""
MOST_STEPS = 100_000
"""Pairs of changes that are tried; a space of more parameters is left to random draws after single changes."""


def grid(parameter: Parameter, points: int = GRID_POINTS) -> tuple[ParamValue, ...]:
    """Values that stand for all of the parameter's: every choice, or points of its range on its own scale."""
    match parameter:
        case ChoiceParameter() | BoolParameter():
            return parameter.values
        case IntParameter() | FloatParameter():
            return _points(parameter, points)


def distance(parameter: Parameter, one: ParamValue, other: ParamValue) -> float:
    """How far two values are apart, from 0 to 1: of a range the share between them, of choices all or nothing.

    Choices that are rising numbers count as a range of as many steps.
    """
    if one == other and type(one) is type(other):
        return 0.0
    if isinstance(parameter, ChoiceParameter) and parameter.is_ordered:
        places = [parameter.values.index(value) for value in (one, other) if value in parameter.values]
        return abs(places[0] - places[-1]) / max(len(parameter.values) - 1, 1)
    if isinstance(parameter, ChoiceParameter | BoolParameter) or isinstance(one, str) or isinstance(other, str):
        return 1.0
    low, high = _scaled(parameter, parameter.low), _scaled(parameter, parameter.high)
    return abs(_scaled(parameter, one) - _scaled(parameter, other)) / (high - low)


def nearest(space: SearchSpace, full: Mapping[str, ParamValue], accepts: Accepts) -> Params | None:
    """The acceptable setting that differs least from `full`; None when none with one or two changes is.

    Args:
        space: The parameters.
        full: A value for each of them, those included that do not exist beside the others.
        accepts: Asked of settings of the active parameters alone, the nearest first.
    """
    moves = {
        name: [(distance(p, full[name], value), value) for value in grid(p) if value != full[name]]
        for name, p in space.parameters.items()
    }
    seen: set[frozenset[tuple[str, ParamValue]]] = set()
    for changes in range(1, MOST_CHANGES + 1):
        if changes > 1 and sum(map(len, moves.values())) ** changes > 2 * MOST_STEPS:
            break
        steps = sorted(_changes(moves, changes), key=lambda step: step[0])
        for _, changed in steps:
            values = {**full, **changed}
            params = space.existing(values)
            # A change of what does not exist is none.
            key = frozenset(params.items())
            if any(name not in params for name in changed) or key in seen:
                continue
            seen.add(key)
            if accepts(params):
                return params
    return None


def total_distance(space: SearchSpace, full: Mapping[str, ParamValue], params: Mapping[str, ParamValue]) -> float:
    """The sum over the parameters of a setting."""
    return sum(distance(space.parameters[name], full[name], value) for name, value in params.items())


def _changes(moves: Mapping[str, list[tuple[float, ParamValue]]], count: int) -> Iterator[tuple[float, Params]]:
    for names in itertools.combinations(moves, count):
        for chosen in itertools.product(*(moves[name] for name in names)):
            changed = {name: value for name, (_, value) in zip(names, chosen, strict=True)}
            yield sum(apart for apart, _ in chosen), changed


def _points(parameter: IntParameter | FloatParameter, count: int) -> tuple[ParamValue, ...]:
    spaced = np.geomspace if parameter.log else np.linspace
    distribution = distribution_of(parameter)
    numbers = spaced(parameter.low, parameter.high, count)
    points = [tidy(parameter.on_grid(float(number)), distribution) for number in numbers]
    return tuple(dict.fromkeys(point for point in points if parameter.contains(point)))


def _scaled(parameter: IntParameter | FloatParameter, value: float) -> float:
    return math.log(value) if parameter.log else float(value)
