"""An Optuna sampler whose every proposal keeps the conditions and rules of the space."""

from __future__ import annotations

import warnings
from collections import Counter
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
from optimizer.tuning.flips import FLIP_EVERY, incumbent, shuffled, untried_flips

MAX_DRAWS = 64
"""Draws of the model that may break a rule before random ones are tried."""
MAX_RANDOM_DRAWS = 1000
STARTUP_TRIALS = 6
"""Trials before TPE models anything; 6 rather than Optuna's 10, since each costs minutes of an engine."""

BrokenRules = Callable[[Mapping[str, ParamValue]], tuple[str, ...]]
"""Gives the rules, as they were written, that a proposal breaks."""


class RuleKeepingSampler(BaseSampler):
    """TPE over the whole space at once, every third time a flip; draws again until conditions and rules hold.

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

    def is_whole(self, params: Mapping[str, ParamValue]) -> bool:
        """Whether these are all parameters of a proposal, and not a part of one."""
        return set(params) == set(self._space.active(params))

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
            return {name: tidy(value, self._distributions[name]) for name, value in self._fixed[trial.number].items()}
        flip = self._flip(study, trial) if trial.number % FLIP_EVERY == FLIP_EVERY - 1 else None
        if flip is not None:
            return flip
        modelled = _modelled_trials(study) >= STARTUP_TRIALS
        broken_by_draw: list[tuple[str, ...]] = []
        for draw in range(MAX_DRAWS + MAX_RANDOM_DRAWS):
            sampler = self._sampler(trial.number, draw, modelled=modelled and draw < MAX_DRAWS)
            params = self._draw(study, trial, sampler)
            broken = self._broken_rules(params)
            if not broken:
                return params
            broken_by_draw.append(broken)
        raise InputError(
            f"none of {len(broken_by_draw)} settings drawn from the space keeps its rules: "
            + "; ".join(_contradicting(broken_by_draw)),
            hint="widen a range or drop a rule",
        )

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Only for a caller that suggests a parameter which the proposal leaves out."""
        return self._sampler(trial.number, 0, modelled=False).sample_independent(
            study, trial, param_name, param_distribution
        )

    def _flip(self, study: Study, trial: FrozenTrial) -> dict[str, ParamValue] | None:
        """The incumbent with one choice changed; None when there is no incumbent, or nothing is left to flip."""
        base = incumbent(study)
        if base is None:
            return None
        drawn = self._draw(study, trial, self._sampler(trial.number, 0, modelled=False), complete=True)
        rng = np.random.default_rng([self._seed, trial.number])
        for flip in shuffled(untried_flips(study, self._space, base), rng):
            values = {**drawn, **flip}
            params = {name: values[name] for name in self._space.active(values)}
            if not self._broken_rules(params):
                return params
        return None

    def _draw(
        self, study: Study, trial: FrozenTrial, sampler: BaseSampler, *, complete: bool = False
    ) -> dict[str, ParamValue]:
        """A value for each parameter that is active, or (`complete`) for each that there is."""
        modelled = sampler.infer_relative_search_space(study, trial)
        drawn = sampler.sample_relative(study, trial, modelled)
        for name, distribution in self._distributions.items():
            if name not in drawn:
                drawn[name] = sampler.sample_independent(study, trial, name, distribution)
        values = {name: tidy(drawn[name], distribution) for name, distribution in self._distributions.items()}
        return values if complete else {name: values[name] for name in self._space.active(values)}

    def _sampler(self, number: int, draw: int, *, modelled: bool) -> BaseSampler:
        seed = int(np.random.SeedSequence([self._seed, number, draw]).generate_state(1)[0])
        if not modelled:
            return RandomSampler(seed=seed)
        with warnings.catch_warnings():
            # `group` is what lets TPE learn from trials that lack a conditional parameter. `constant_liar` is for
            # trials that run beside this one, of which there are none: it reads the history anew for each draw.
            warnings.simplefilter("ignore", ExperimentalWarning)
            return TPESampler(seed=seed, n_startup_trials=0, multivariate=True, group=True, constant_liar=False)


def _modelled_trials(study: Study) -> int:
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))


def _contradicting(broken_by_draw: list[tuple[str, ...]]) -> list[str]:
    """A few rules of which every draw breaks one: the most broken one, then that of the draws which keep it, and on."""
    named: list[str] = []
    left = broken_by_draw
    while left:
        ((rule, _),) = Counter(rule for broken in left for rule in broken).most_common(1)
        named.append(rule)
        left = [broken for broken in left if rule not in broken]
    return named
