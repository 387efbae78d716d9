"""An Optuna sampler whose every proposal keeps the conditions and rules of the space, and may fit into memory."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optimizer.core.errors import InputError
from optimizer.core.record import ParamValue, TrialRecord
from optimizer.search_spaces import BUILT_IN_RULES, Parameter, SearchSpace
from optimizer.tuning.contradiction import contradiction
from optimizer.tuning.course import Course, Told
from optimizer.tuning.distributions import distributions_of, tidy
from optimizer.tuning.first_trials import FirstSetting
from optimizer.tuning.flips import FLIP_EVERY, incumbent, shuffled, untried_flips
from optimizer.tuning.nearest_fit import nearest, total_distance
from optimizer.tuning.prescreen import Misfit
from optimizer.tuning.random_settings import random_setting, random_value
from optimizer.tuning.rule_repair import FlagsOf, RuleRepair, settings_of
from optimizer.tuning.strategies.draw import fresh
from optimizer.tuning.strategy import Ask, ForeseesGain, Params, Strategy, seen

MAX_DRAWS = 64
"""Proposals of the strategy that may break a rule before random ones are tried."""
MAX_RANDOM_DRAWS = 300
"""Random settings that may break a rule before they are changed until they keep all."""
MAX_REPAIRS = 10
"""Random settings that are so changed in vain before the rules are held to contradict each other."""
NEAREST_DRAWS = 200
"""Random settings among which that one is looked for when no change of two parameters is enough."""

BrokenRules = Callable[[Mapping[str, ParamValue]], tuple[str, ...]]
"""Gives the rules, as they were written, that a proposal breaks."""
Prescreen = Callable[[Mapping[str, ParamValue]], "Misfit | None"]
"""Says why a proposal cannot start, as far as that is known before a launch."""


class RuleKeepingSampler(BaseSampler):
    """Fixed proposals, then the first settings, then a flip every third time and else what the strategy proposes.

    Of each source the first proposal is taken that keeps conditions and rules and may start. Every proposal depends on
    the seed, the trial's number and the history alone, so a resumed study proposes what an unbroken one would.

    Args:
        space: The parameters.
        broken_rules: Says which rules a proposal breaks.
        fixed: Proposals that are not to be drawn, by trial number: baseline and defaults.
        seed: The study's.
        prescreen: Opens, for each ask anew, the check that says what cannot start; None lets everything pass. Proposals
            that are not drawn are not asked about.
        strategy: Draws what is neither fixed nor a first setting nor a flip.
        records: Gives the study's trials as they are recorded now.
        first: Settings to begin with; those that break a rule or cannot start are passed over.
        flips: Whether every third proposal is a flip, as long as one is left.
        flags_of: What a setting is launched with; lets settings be found that keep rules which random draws never keep.
    """

    def __init__(
        self,
        space: SearchSpace,
        broken_rules: BrokenRules,
        *,
        fixed: Mapping[int, Mapping[str, ParamValue]],
        seed: int,
        prescreen: Callable[[], Prescreen] | None = None,
        strategy: Strategy,
        records: Callable[[], Sequence[TrialRecord]],
        first: Sequence[Params | FirstSetting] = (),
        flips: bool = True,
        flags_of: FlagsOf | None = None,
    ) -> None:
        self._space = space
        self._broken_rules = broken_rules
        self._fixed = fixed
        self._seed = seed
        self._open_prescreen = _passing if prescreen is None else prescreen
        self._strategy = strategy
        self._records = records
        self._first = tuple(one if isinstance(one, FirstSetting) else FirstSetting(one, "as given") for one in first)
        self._flips = flips
        self._flags_of = flags_of or functools.partial(space.flags, device_memory_bytes=None)
        self._rules = (*BUILT_IN_RULES, *space.rules)
        self._told = Told()
        self._distributions = distributions_of(space.parameters)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters of the space."""
        return self._space.parameters

    @property
    def last(self) -> Told:
        """What is to be recorded of the last proposal."""
        return self._told

    def is_whole(self, params: Mapping[str, ParamValue]) -> bool:
        """Whether these are all parameters of a proposal, and not a part of one."""
        return set(params) == set(self._space.active(params))

    def is_exhausted(self, tried: Sequence[Mapping[str, ParamValue]]) -> bool:
        """Whether these are all settings of the space that keep its rules and may start, so that any other is a repeat.

        Only a space of no more settings than these can be exhausted; others are not looked through.
        """
        every = settings_of(self._space, len(tried))
        if every is None:
            return False
        misfit = self._open_prescreen()
        return all(params in tried or self._broken_rules(params) or misfit(params) for params in every)

    def has_flips(self, study: Study) -> bool:
        """Whether a choice of the incumbent is left that was not tried beside it; never where flips are not made."""
        base = incumbent(study) if self._flips else None
        if base is None:
            return False
        misfit = self._open_prescreen()
        filler = random_setting(self._space.parameters, np.random.default_rng([self._seed]))
        flips = (self._existing({**filler, **flip.params}) for flip in untried_flips(study, self._space, base))
        return any(not self._broken_rules(params) and misfit(params) is None for params in flips)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters: the proposal is always joint."""
        return dict(self._distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The proposal: the parameters that are active in it, and no others.

        Raises:
            InputError: No setting was found that keeps the rules, and those that contradict each other are named; or
                of those that keep them none fits into memory.
        """
        self._told = Told()
        if trial.number in self._fixed:
            return {name: tidy(value, self._distributions[name]) for name, value in self._fixed[trial.number].items()}
        course = self._course(study, trial)
        first = self._first_setting(course)
        if first is not None:
            return first
        flip = self._flip(course) if self._flips and trial.number % FLIP_EVERY == FLIP_EVERY - 1 else None
        return self._drawn(course) if flip is None else flip

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Only for a caller that suggests a parameter which the proposal leaves out."""
        return random_value(self._space.parameters[param_name], np.random.default_rng([self._seed, trial.number]))

    def _course(self, study: Study, trial: FrozenTrial) -> Course:
        open_trials = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        ask = Ask(
            number=trial.number,
            rng=np.random.default_rng([self._seed, trial.number, 0]),
            history=seen(self._records()),
            pending=tuple(dict(other.params) for other in open_trials if other.number != trial.number),
            keeps_rules=lambda params: not self._broken_rules(params),
            misfit=self._open_prescreen(),
            study=study,
            trial=trial,
        )
        rng = np.random.default_rng([self._seed, trial.number, 1])
        return Course(ask, random_setting(self._space.parameters, rng), rng)

    def _first_setting(self, course: Course) -> Params | None:
        """The next of the first settings; None once as many trials have gone by as there are."""
        ask = course.ask
        if ask.number >= len(self._fixed) + len(self._first):
            return None
        others = [other.params for other in ask.study.get_trials(deepcopy=False) if other.number != ask.number]
        for at, setting in enumerate(self._first, 1):
            params = self._existing({**course.filler, **setting.params})
            if params in others or not ask.keeps_rules(params):
                continue
            if self._starts(course, params):
                return self._taken(course, params, f"first trial {at} of {len(self._first)}: {setting.reason}")
        return None

    def _flip(self, course: Course) -> Params | None:
        """The incumbent with one choice changed; None when there is no incumbent, or nothing is left to flip."""
        ask = course.ask
        base = incumbent(ask.study)
        if base is None:
            return None
        for flip in shuffled(untried_flips(ask.study, self._space, base, ask.pending), course.rng):
            params = self._existing({**course.filler, **flip.params})
            if not ask.keeps_rules(params):
                continue
            if self._starts(course, params):
                return self._taken(course, params, flip.words)
            if course.is_rejecting:
                break
        return None

    def _drawn(self, course: Course) -> Params:
        """The first draw that keeps the rules and may start; after too many that may not, the nearest that may."""
        for drawn, is_strategys in self._draws(course):
            full = {**course.filler, **drawn}
            params = self._existing(full)
            broken = self._broken_rules(params)
            if broken:
                course.broken_by_draw.append(broken)
                continue
            fits = self._starts(course, params)
            if not fits and not course.is_rejecting:
                continue
            chosen = params if fits else self._nearest_fit(course, full)
            if not is_strategys:
                why = f"drawn at random: {self._strategy.name} proposed nothing that could be launched"
                return self._taken(course, chosen, why)
            again = next((trial.number for trial in course.ask.history if trial.params == chosen), None)
            why = f"proposed by {self._strategy.name}" + ("" if again is None else f": #{again} once more")
            return self._taken(course, chosen, why, _expected_gain(self._strategy) if fits else None)
        conflict = contradiction(self._space, self._rules, self._flags_of, course.rng)
        raise InputError(conflict.words, hint="widen a range or drop a rule")

    def _draws(self, course: Course) -> Iterator[tuple[Params, bool]]:
        """What the strategy proposes and, when that breaks rules again and again or comes to an end, random settings.

        Each with whether it is the strategy's. Where random settings keep the rules no more than those of the strategy
        did, they are changed until they do.
        """
        for proposal in self._strategy.proposals(course.ask):
            yield proposal, True
            if len(course.broken_by_draw) >= MAX_DRAWS:
                break
        limit = len(course.broken_by_draw) + MAX_RANDOM_DRAWS
        drawn_at_random = (random_setting(self._space.parameters, course.rng) for _ in itertools.count())
        for drawn in fresh(self._space, course.ask, drawn_at_random):
            if len(course.broken_by_draw) >= limit:
                break
            yield drawn, False
        repair = RuleRepair(self._space, self._flags_of)
        in_vain = 0
        while in_vain < MAX_REPAIRS:
            drawn = random_setting(self._space.parameters, course.rng)
            repaired = repair.walk(self._rules, drawn, course.rng)
            broken = len(course.broken_by_draw)
            if repaired is not None:
                yield repaired, False
            in_vain += repaired is None or len(course.broken_by_draw) > broken

    def _starts(self, course: Course, params: Params) -> bool:
        """Whether it may start; that it cannot is told to the strategy and counted."""
        misfit = course.ask.misfit(params)
        if misfit is not None and not course.is_rejecting:
            course.ask.rejected.append((params, misfit))
        return misfit is None

    def _taken(self, course: Course, params: Params, why: str, gain: float | None = None) -> Params:
        self._told = Told(why, course.rejects, gain)
        return params

    def _nearest_fit(self, course: Course, full: Mapping[str, ParamValue]) -> Params:
        """What keeps the rules and may start, next to the last draw."""
        course.nearest_taken = True
        ask = course.ask

        def may_start(params: Params) -> bool:
            return ask.keeps_rules(params) and ask.misfit(params) is None

        found = nearest(self._space, full, may_start)
        if found is not None:
            return found
        drawn = (self._existing(random_setting(self._space.parameters, course.rng)) for _ in range(NEAREST_DRAWS))
        fitting = [params for params in drawn if may_start(params)]
        if fitting:
            return min(fitting, key=lambda params: total_distance(self._space, full, params))
        raise InputError(
            f"no setting of the space that keeps its rules was found to start: {ask.rejected[-1][1].reason}",
            hint="give the engine more memory, cap max-model-len lower, or drop a rule",
        )

    def _existing(self, values: Mapping[str, ParamValue]) -> Params:
        """Those of the values whose parameter exists beside the others, as they will be recorded."""
        return {name: tidy(values[name], self._distributions[name]) for name in self._space.active(values)}


def _expected_gain(strategy: Strategy) -> float | None:
    gain = strategy.expected_gain if isinstance(strategy, ForeseesGain) else None
    return None if gain is None or not math.isfinite(gain) else gain


def _passes(_params: Mapping[str, ParamValue]) -> None:
    """The check that finds nothing."""


def _passing() -> Prescreen:
    """Opens the check that finds nothing."""
    return _passes
