"""An Optuna sampler whose every proposal keeps the conditions and rules of the space, and may fit into memory."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
from optimizer.tuning.nearest_fit import nearest, total_distance
from optimizer.tuning.prescreen import Misfit
from optimizer.tuning.taught_study import TaughtStudy

MAX_DRAWS = 64
"""Draws of the model that may break a rule before random ones are tried."""
MAX_RANDOM_DRAWS = 1000
MAX_REJECTS = 64
"""Proposals of one ask that may be rejected for want of memory before the nearest one that fits is taken."""
NEAREST_DRAWS = 200
"""Random settings among which that one is looked for when no change of two parameters is enough."""
STARTUP_TRIALS = 6
"""Trials before TPE models anything; 6 rather than Optuna's 10, since each costs minutes of an engine."""

BrokenRules = Callable[[Mapping[str, ParamValue]], tuple[str, ...]]
"""Gives the rules, as they were written, that a proposal breaks."""
Prescreen = Callable[[Mapping[str, ParamValue]], "Misfit | None"]
"""Says why a proposal cannot start, as far as that is known before a launch."""


@dataclass(slots=True)
class _Rejected:
    """The proposals of one ask that cannot start."""

    misfits: list[Misfit] = field(default_factory=list)
    nearest_taken: bool = False

    @property
    def note(self) -> str | None:
        """For the record of the trial that was launched instead; None when there were none."""
        if not self.misfits:
            return None
        count = len(self.misfits)
        noun = "1 proposal before this one was" if count == 1 else f"{count} proposals before this one were"
        nearest_fit = "; this is the nearest setting that fits" if self.nearest_taken else ""
        return f"{noun} rejected unlaunched: {self.misfits[-1].reason}{nearest_fit}"


class RuleKeepingSampler(BaseSampler):
    """TPE over the whole space at once, every third time a flip; draws again until conditions and rules hold.

    A proposal that cannot start is rejected, and for the rest of the ask the model knows it as a violated constraint.
    Every proposal depends on the seed, the trial's number and the history alone, so a resumed study proposes what an
    unbroken one would.

    Args:
        space: The parameters.
        broken_rules: Says which rules a proposal breaks.
        fixed: Proposals that are not to be drawn, by trial number: baseline and defaults.
        seed: The study's.
        prescreen: Opens, for each ask anew, the check that says what cannot start; None lets everything pass. Proposals
            that are not drawn are not asked about.
    """

    def __init__(
        self,
        space: SearchSpace,
        broken_rules: BrokenRules,
        *,
        fixed: Mapping[int, Mapping[str, ParamValue]],
        seed: int,
        prescreen: Callable[[], Prescreen] | None = None,
    ) -> None:
        self._space = space
        self._broken_rules = broken_rules
        self._fixed = fixed
        self._seed = seed
        self._open_prescreen = prescreen
        self._prescreen: Prescreen = _passes
        self._rejected = _Rejected()
        self._distributions = distributions_of(space.parameters)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters of the space."""
        return self._space.parameters

    @property
    def last_note(self) -> str | None:
        """How many proposals of the last ask were rejected before it came to one, and why; None when none was."""
        return self._rejected.note

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
            InputError: Not one of many random draws keeps the rules, so they contradict each other; or of those that
                keep them none fits into memory.
        """
        self._rejected = _Rejected()
        if trial.number in self._fixed:
            return {name: tidy(value, self._distributions[name]) for name, value in self._fixed[trial.number].items()}
        self._prescreen = _passes if self._open_prescreen is None else self._open_prescreen()
        flip = self._flip(study, trial) if trial.number % FLIP_EVERY == FLIP_EVERY - 1 else None
        return self._drawn(study, trial) if flip is None else flip

    def _drawn(self, study: Study, trial: FrozenTrial) -> dict[str, ParamValue]:
        """The first draw that keeps the rules and may start; after too many that may not, the nearest that may."""
        modelled = _modelled_trials(study) >= STARTUP_TRIALS
        taught = TaughtStudy(study, self._distributions)
        broken_by_draw: list[tuple[str, ...]] = []
        draw = 0
        while len(broken_by_draw) < MAX_DRAWS + MAX_RANDOM_DRAWS:
            sampler = self._sampler(trial.number, draw, modelled=modelled and len(broken_by_draw) < MAX_DRAWS)
            full = self._draw(taught.study, trial, sampler)
            params = self._existing(full)
            draw += 1
            broken = self._broken_rules(params)
            if broken:
                broken_by_draw.append(broken)
                continue
            misfit = self._prescreen(params)
            if misfit is None:
                return params
            self._rejected.misfits.append(misfit)
            if len(self._rejected.misfits) >= MAX_REJECTS:
                return self._nearest_fit(study, trial, full)
            taught.learn(params, misfit.violation)
        raise InputError(
            f"none of {len(broken_by_draw)} settings drawn from the space keeps its rules: "
            + "; ".join(_contradicting(broken_by_draw)),
            hint="widen a range or drop a rule",
        )

    def _nearest_fit(self, study: Study, trial: FrozenTrial, full: Mapping[str, ParamValue]) -> dict[str, ParamValue]:
        """What keeps the rules and may start, next to the last draw."""
        self._rejected.nearest_taken = True
        found = nearest(self._space, full, self._may_start)
        if found is not None:
            return found
        drawn = (
            self._existing(self._draw(study, trial, self._sampler(trial.number, MAX_DRAWS + at, modelled=False)))
            for at in range(NEAREST_DRAWS)
        )
        fitting = [params for params in drawn if self._may_start(params)]
        if fitting:
            return min(fitting, key=lambda params: total_distance(self._space, full, params))
        raise InputError(
            f"no setting of the space that keeps its rules was found to start: {self._rejected.misfits[-1].reason}",
            hint="give the engine more memory, cap max-model-len lower, or drop a rule",
        )

    def _may_start(self, params: Mapping[str, ParamValue]) -> bool:
        return not self._broken_rules(params) and self._prescreen(params) is None

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
        drawn = self._draw(study, trial, self._sampler(trial.number, 0, modelled=False))
        rng = np.random.default_rng([self._seed, trial.number])
        for flip in shuffled(untried_flips(study, self._space, base), rng):
            params = self._existing({**drawn, **flip})
            if self._broken_rules(params):
                continue
            misfit = self._prescreen(params)
            if misfit is None:
                return params
            self._rejected.misfits.append(misfit)
            if len(self._rejected.misfits) >= MAX_REJECTS:
                break
        return None

    def _draw(self, study: Study, trial: FrozenTrial, sampler: BaseSampler) -> dict[str, ParamValue]:
        """A value for each parameter that there is, whether it exists beside the others or not."""
        modelled = sampler.infer_relative_search_space(study, trial)
        drawn = sampler.sample_relative(study, trial, modelled)
        for name, distribution in self._distributions.items():
            if name not in drawn:
                drawn[name] = sampler.sample_independent(study, trial, name, distribution)
        return {name: tidy(drawn[name], distribution) for name, distribution in self._distributions.items()}

    def _existing(self, values: Mapping[str, ParamValue]) -> dict[str, ParamValue]:
        """Those of the values whose parameter exists beside the others."""
        return {name: values[name] for name in self._space.active(values)}

    def _sampler(self, number: int, draw: int, *, modelled: bool) -> BaseSampler:
        seed = int(np.random.SeedSequence([self._seed, number, draw]).generate_state(1)[0])
        if not modelled:
            return RandomSampler(seed=seed)
        with warnings.catch_warnings():
            # `group` is what lets TPE learn from trials that lack a conditional parameter. `constant_liar` is for
            # trials that run beside this one, of which there are none: it reads the history anew for each draw.
            warnings.simplefilter("ignore", ExperimentalWarning)
            return TPESampler(seed=seed, n_startup_trials=0, multivariate=True, group=True, constant_liar=False)


def _passes(_params: Mapping[str, ParamValue]) -> None:
    """The check that finds nothing."""


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
