"""An Optuna sampler whose every proposal keeps the conditions and rules of the space."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optimizer.core.errors import InputError
from optimizer.core.record import ParamValue
from optimizer.search_spaces import Parameter, SearchSpace
from optimizer.tuning.distributions import distributions_of, tidy

MAX_DRAWS = 64
"""Draws of the model that may break a rule before random ones are tried."""
MAX_RANDOM_DRAWS = 1000
STARTUP_TRIALS = 6
"""Trials before TPE models anything; 6 rather than Optuna's 10, since each costs minutes of an engine."""

BrokenRules = Callable[[Mapping[str, ParamValue]], tuple[str, ...]]


class RuleKeepingSampler(BaseSampler):
    """TPE over the whole space at once; draws again until the conditions and rules hold.

    Every proposal depends on the seed, the trial's number and the history alone, so a resumed study proposes what an
    unbroken one would.

    Args:
        space: The parameters.
        broken_rules: Says which rules a proposal breaks.
        fixed: Proposals that are not to be drawn, by trial number: baseline and defaults.
        seed: The study's.
    """

    def __init__(
        self,
        space: SearchSpace,
        broken_rules: BrokenRules,
        *,
        fixed: Mapping[int, Mapping[str, ParamValue]],
        seed: int,
    ) -> None:
        self._space = space
        self._broken_rules = broken_rules
        self._fixed = fixed
        self._seed = seed
        self._distributions = distributions_of(space.parameters)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters of the space."""
        return self._space.parameters

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters: the proposal is always joint."""
        return dict(self._distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The proposal: the parameters that are active in it, and no others.

        Raises:
            InputError: Not one of many random draws keeps the rules, so they contradict each other.
        """
        if trial.number in self._fixed:
            return dict(self._fixed[trial.number])
        modelled = _modelled_trials(study) >= STARTUP_TRIALS
        broken: tuple[str, ...] = ()
        for draw in range(MAX_DRAWS + MAX_RANDOM_DRAWS):
            sampler = self._sampler(trial.number, draw, modelled=modelled and draw < MAX_DRAWS)
            params = self._draw(study, trial, sampler)
            broken = self._broken_rules(params)
            if not broken:
                return params
        raise InputError(
            "the rules of the space leave no setting: " + "; ".join(broken), hint="widen a range or drop a rule"
        )

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Only for a caller that suggests a parameter which the proposal leaves out."""
        return self._sampler(trial.number, 0, modelled=False).sample_independent(
            study, trial, param_name, param_distribution
        )

    def _draw(self, study: Study, trial: FrozenTrial, sampler: BaseSampler) -> dict[str, ParamValue]:
        modelled = sampler.infer_relative_search_space(study, trial)
        drawn = sampler.sample_relative(study, trial, modelled)
        for name, distribution in self._distributions.items():
            if name not in drawn:
                drawn[name] = sampler.sample_independent(study, trial, name, distribution)
        values = {name: tidy(drawn[name]) for name in self._distributions}
        return {name: values[name] for name in self._space.active(values)}

    def _sampler(self, number: int, draw: int, *, modelled: bool) -> BaseSampler:
        seed = int(np.random.SeedSequence([self._seed, number, draw]).generate_state(1)[0])
        if not modelled:
            return RandomSampler(seed=seed)
        with warnings.catch_warnings():
            # `group` is what lets TPE learn from trials that lack a conditional parameter.
            warnings.simplefilter("ignore", ExperimentalWarning)
            return TPESampler(seed=seed, n_startup_trials=0, multivariate=True, group=True, constant_liar=True)


def _modelled_trials(study: Study) -> int:
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))
