"""Random settings of a space, and limits that a few of them keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, Parameter, SearchSpace
from tests.bench.search.situation import Situation, Truth

DRAWS = 500
LEAST_FEASIBLE = 0.02
"""Share of random settings that must keep all limits: fewer is no study that anybody would run."""
MOST_FEASIBLE = 0.10
"""And so many must not: random search would do."""
_RELAXED = 1.04
_TIGHTENED = 0.97
_LONGER_THAN_ALLOWED = 0.01


def random_value(parameter: Parameter, rng: np.random.Generator) -> ParamValue:
    """Uniform on the parameter's own scale."""
    if isinstance(parameter, BoolParameter):
        return bool(rng.integers(2))
    if isinstance(parameter, ChoiceParameter):
        return parameter.values[int(rng.integers(len(parameter.values)))]
    if parameter.log:
        value = math.exp(rng.uniform(math.log(parameter.low), math.log(parameter.high)))
    else:
        value = float(rng.uniform(parameter.low, parameter.high))
    return snapped(parameter, value)


def snapped(parameter: Parameter, value: float) -> ParamValue:
    """The value of a range that lies next to a number."""
    assert not isinstance(parameter, BoolParameter | ChoiceParameter)
    value = min(max(value, parameter.low), parameter.high)
    if parameter.step is not None:
        value = parameter.low + parameter.step * round((value - parameter.low) / parameter.step)
    return round(value) if parameter.kind == "int" else float(f"{value:.12g}")


def existing(space: SearchSpace, full: Mapping[str, ParamValue]) -> dict[str, ParamValue]:
    """Those of a value for each parameter that exist beside the others."""
    return {name: full[name] for name in space.active(full)}


def random_full(space: SearchSpace, rng: np.random.Generator) -> dict[str, ParamValue]:
    """A value for each parameter."""
    return {name: random_value(parameter, rng) for name, parameter in space.parameters.items()}


def random_params(situation: Situation, rng: np.random.Generator) -> dict[str, ParamValue]:
    """A random setting that keeps the rules."""
    while True:
        params = existing(situation.space, random_full(situation.space, rng))
        if not situation.broken_rules(params):
            return params


def with_limits(situation: Situation, factors: Mapping[str, float], rng: np.random.Generator) -> Situation:
    """The situation with limits that bind.

    Each is a multiple of what the fastest of some random settings has, so that the fastest is no answer; together they
    are relaxed or tightened until a small share of random settings keeps them.

    Args:
        situation: Without limits.
        factors: Metric to multiple.
        rng: Draws the settings.
    """
    truths = [situation.truth(random_params(situation, rng)) for _ in range(DRAWS)]
    whole = [t for t in truths if t.crash is None and t.metrics["error_rate"] <= _LONGER_THAN_ALLOWED]
    fastest = max(whole, key=situation.value)
    limits = {name: factor * fastest.metrics[name] for name, factor in factors.items()}
    while sum(_keeps(truth, limits) for truth in whole) < LEAST_FEASIBLE * DRAWS:
        limits = {name: limit * _RELAXED for name, limit in limits.items()}
    while sum(_keeps(truth, limits) for truth in whole) > MOST_FEASIBLE * DRAWS:
        limits = {name: limit * _TIGHTENED for name, limit in limits.items()}
    rounded = {name: float(f"{limit:.3g}") for name, limit in limits.items()}
    return replace(situation, limits={**rounded, "error_rate": _LONGER_THAN_ALLOWED})


def _keeps(truth: Truth, limits: Mapping[str, float]) -> bool:
    return all(truth.metrics[name] <= limit for name, limit in limits.items())


def around(rng: np.random.Generator, centre: float, share: float = 0.25) -> float:
    """A number within a share of another, even in logarithms."""
    return centre * float((1.0 + share) ** rng.uniform(-1.0, 1.0))
