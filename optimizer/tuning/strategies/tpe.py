"""Optuna's tree-structured Parzen estimator, over the whole space at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import TPESampler

from optimizer.search_spaces import SearchSpace
from optimizer.tuning.distributions import distributions_of
from optimizer.tuning.random_settings import random_setting
from optimizer.tuning.strategies.draw import draw, fresh, is_warm, next_seed
from optimizer.tuning.strategy import Ask, Params
from optimizer.tuning.taught_study import TaughtStudy


class Tpe:
    """Random settings first, then the model's; for the rest of an ask it knows a rejected one as a violated constraint.

    Args:
        space: The parameters.
    """

    name = "tpe"

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._distributions = distributions_of(space.parameters)

    def proposals(self, ask: Ask) -> Iterator[Params]:
        """Endless; without repeats as long as there is anything else."""
        return fresh(self._space, ask, self._drawn(ask))

    def _drawn(self, ask: Ask) -> Iterator[Params]:
        while not is_warm(ask.study):
            yield random_setting(self._space.parameters, ask.rng)
        taught, learnt = TaughtStudy(ask.study, self._distributions), 0
        while True:
            for params, misfit in ask.rejected[learnt:]:
                taught.learn(params, misfit.violation)
            learnt = len(ask.rejected)
            yield draw(_sampler(next_seed(ask.rng)), taught.study, ask.trial, self._distributions)


def _sampler(seed: int) -> TPESampler:
    with warnings.catch_warnings():
        # `group` is what lets TPE learn from trials that lack a conditional parameter. `constant_liar` is for
        # trials that run beside this one: it reads the history anew for each draw.
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(seed=seed, n_startup_trials=0, multivariate=True, group=True, constant_liar=False)
