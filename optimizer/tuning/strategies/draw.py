"""One draw of an Optuna sampler, whole: what it does not model, it draws by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optimizer.search_spaces import SearchSpace
from optimizer.tuning.distributions import tidy
from optimizer.tuning.strategies.levels import key_of, tried_keys
from optimizer.tuning.strategy import Ask, Params

STARTUP_TRIALS = 6
"""Trials before Optuna's samplers model anything; 6 rather than its 10, since each costs minutes of an engine."""

MOST_REPEATS = 16
"""Draws of one ask that are passed over for repeating a trial."""


def draw(
    sampler: BaseSampler, study: Study, trial: FrozenTrial, distributions: Mapping[str, BaseDistribution]
) -> Params:
    """A value for each parameter that there is, whether it exists beside the others or not."""
    modelled = sampler.infer_relative_search_space(study, trial)
    drawn = sampler.sample_relative(study, trial, modelled)
    for name, distribution in distributions.items():
        if name not in drawn:
            drawn[name] = sampler.sample_independent(study, trial, name, distribution)
    return {name: tidy(drawn[name], distribution) for name, distribution in distributions.items()}


def fresh(space: SearchSpace, ask: Ask, drawn: Iterator[Params]) -> Iterator[Params]:
    """The draws without those that were tried or run, unless little else comes: a repeat tells least of all settings.

    Settings are measured again on purpose when the best is confirmed.
    """
    tried = tried_keys(ask)
    passed_over = 0
    for full in drawn:
        if passed_over < MOST_REPEATS and key_of(space.existing(full)) in tried:
            passed_over += 1
        else:
            yield full


def next_seed(rng: np.random.Generator) -> int:
    """A seed for a sampler that is made for one draw."""
    return int(rng.integers(2**32, dtype=np.uint64))


def is_warm(study: Study) -> bool:
    """Whether the study has trials enough for a model."""
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))) >= STARTUP_TRIALS
