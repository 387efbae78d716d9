"""What the strategies that follow a plan share: where they begin, and which settings have been tried."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeAlias

from optimizer.core.record import ParamValue
from optimizer.search_spaces import Parameter, SearchSpace
from optimizer.tuning.nearest_fit import grid
from optimizer.tuning.strategy import Ask, Params

BASELINE = 0
COARSE, FINE = 4, 9
"""Values of a range that are tried first, and when those are through; every choice belongs to both."""

Key: TypeAlias = Hashable


def base_setting(space: SearchSpace, ask: Ask) -> Params:
    """The baseline where it sets a parameter; else its default, or a middle value.

    A value for each parameter, whether it exists beside the others or not.
    """
    trials = ask.study.get_trials(deepcopy=False)
    # It counts for what it sets, whatever came of it, and before anything did.
    baseline = next((trial.params for trial in trials if trial.number == BASELINE != ask.number), {})
    return {name: baseline.get(name, usual_value(parameter)) for name, parameter in space.parameters.items()}


def usual_value(parameter: Parameter) -> ParamValue:
    """The parameter's default, or the middle of its values."""
    if parameter.default is not None:
        return parameter.default
    values = grid(parameter)
    return values[(len(values) - 1) // 2]


def key_of(params: Mapping[str, ParamValue]) -> Key:
    """Equal for equal settings."""
    return frozenset(params.items())


def tried_keys(ask: Ask) -> set[Key]:
    """Of the settings that were tried or run."""
    return {key_of(params) for params in (*(trial.params for trial in ask.history), *ask.pending)}
