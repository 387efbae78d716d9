"""Settings that keep rules which random draws hardly ever keep: walked to, or found among all there are.

A rule compares two flags, so it says itself at which value of one of them it begins to hold: the walk takes a broken
rule and moves one of its parameters there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from optimizer.core.engine_config import FlagValue
from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter, Rule, SearchSpace
from optimizer.tuning.distributions import distribution_of, tidy
from optimizer.tuning.nearest_fit import Params, grid
from optimizer.tuning.random_settings import random_setting

FlagsOf: TypeAlias = Callable[[Mapping[str, ParamValue]], Mapping[str, FlagValue]]
"""The flags that a setting is launched with, fixed ones included."""

MOST_SETTINGS = 5_000
"""Of so many every one is looked at."""
_STEPS = 40
_RESTARTS = 12
_BLIND_STEPS = 0.1
"""Share of steps that go anywhere, so that a walk does not circle."""


class RuleRepair:
    """Finds settings that keep rules.

    Args:
        space: The parameters.
        flags_of: What a setting is launched with.
    """

    def __init__(self, space: SearchSpace, flags_of: FlagsOf) -> None:
        self._space = space
        self._flags_of = flags_of

    def keeps(self, rules: Sequence[Rule], params: Mapping[str, ParamValue]) -> bool:
        """Whether none of the rules is broken."""
        return not self._broken(rules, params)

    def walk(self, rules: Sequence[Rule], full: Mapping[str, ParamValue], rng: np.random.Generator) -> Params | None:
        """What keeps the rules and is reached from `full` by changing what breaks them; None when nothing is reached.

        Returns:
            A value for each parameter, whether it exists beside the others or not.
        """
        values = dict(full)
        for _ in range(_STEPS):
            broken = self._broken(rules, self._space.existing(values))
            if not broken:
                return values
            moves = list(self._moves(broken[int(rng.integers(len(broken)))], values))
            if not moves:
                return None
            values |= self._step(rules, values, moves, rng)
        return None

    def any_keeping(self, rules: Sequence[Rule], rng: np.random.Generator) -> tuple[Params | None, bool]:
        """A setting that keeps the rules, and whether that there is none is certain.

        Certain it is when everything that the rules depend on was looked at, value by value.
        """
        base = random_setting(self._space.parameters, rng)
        names = self._concerned(rules)
        every = self._every(names)
        if every is not None:
            for values in every:
                full = {**base, **values}
                if self.keeps(rules, self._space.existing(full)):
                    return full, True
            return None, True
        for _ in range(_RESTARTS):
            found = self.walk(rules, random_setting(self._space.parameters, rng), rng)
            if found is not None:
                return found, True
        return None, False

    def _broken(self, rules: Sequence[Rule], params: Mapping[str, ParamValue]) -> list[Rule]:
        flags = self._flags_of(params)
        return [rule for rule in rules if rule.broken_by(flags) is not None]

    def _step(
        self, rules: Sequence[Rule], values: Params, moves: Sequence[tuple[str, ParamValue]], rng: np.random.Generator
    ) -> Params:
        """One of the moves after which fewest rules are broken, or now and then any."""
        if rng.random() < _BLIND_STEPS:
            name, value = moves[int(rng.integers(len(moves)))]
            return {name: value}
        left = [len(self._broken(rules, self._space.existing({**values, name: value}))) for name, value in moves]
        best = [move for move, count in zip(moves, left, strict=True) if count == min(left)]
        name, value = best[int(rng.integers(len(best)))]
        return {name: value}

    def _moves(self, rule: Rule, values: Params) -> Iterator[tuple[str, ParamValue]]:
        """Changes of one parameter after which the rule may hold."""
        params = self._space.existing(values)
        flags = self._flags_of(params)
        for name in self._concerned((rule,)):
            parameter = self._space.parameters[name]
            if isinstance(parameter, ChoiceParameter | BoolParameter):
                candidates: Sequence[ParamValue] = grid(parameter)
            elif name in params:
                candidates = (*_turning_points(rule, parameter, name, params[name], flags), *grid(parameter, 3))
            else:
                continue
            yield from ((name, value) for value in dict.fromkeys(candidates) if value != values[name])

    def _concerned(self, rules: Sequence[Rule]) -> tuple[str, ...]:
        """The parameters that decide about the rules, with those on which their existence depends."""
        flags = {flag for rule in rules for flag in (*rule.flags, *rule.only_if)}
        own = [name for name, p in self._space.parameters.items() if flags.intersection(p.flag_names(name))]
        names: dict[str, None] = {}
        while own:
            name = own.pop()
            if name not in names:
                names[name] = None
                own.extend(self._space.parameters[name].when)
        return tuple(name for name in self._space.parameters if name in names)

    def _every(self, names: Sequence[str]) -> Iterator[Params] | None:
        """All combinations of these parameters' values; None when there are too many."""
        values = [all_values(self._space, name) for name in names]
        if any(one is None for one in values) or math.prod(len(one or ()) for one in values) > MOST_SETTINGS:
            return None
        products = itertools.product(*(one or () for one in values))
        return (dict(zip(names, combination, strict=True)) for combination in products)


def all_values(space: SearchSpace, name: str) -> Sequence[ParamValue] | None:
    """Every value of a parameter; None when there are too many, or it is no discrete one."""
    parameter = space.parameters[name]
    match parameter:
        case ChoiceParameter() | BoolParameter():
            return parameter.values
        case IntParameter():
            return parameter.values if parameter.steps < MOST_SETTINGS else None
        case FloatParameter():
            steps = parameter.steps
            return None if steps is None or steps >= MOST_SETTINGS else grid(parameter, steps + 1)


def settings_of(space: SearchSpace, most: int) -> list[Params] | None:
    """Every setting of the space, of the parameters that exist in it alone, whatever the rules; None if over `most`."""
    settings: list[Params] = [{}]
    for name in _deciders_first(space):
        values = all_values(space, name)
        grown: list[Params] = []
        for setting in settings:
            exists = name in space.active(setting)
            if exists and values is None:
                return None
            grown += [{**setting, name: value} for value in values or ()] if exists else [setting]
            if len(grown) > most:
                return None
        settings = grown
    return settings


def _deciders_first(space: SearchSpace) -> tuple[str, ...]:
    ordered: dict[str, None] = {}

    def visit(name: str) -> None:
        for other in space.parameters[name].when:
            visit(other)
        ordered.setdefault(name)

    for name in space.parameters:
        visit(name)
    return tuple(ordered)


def _turning_points(
    rule: Rule,
    parameter: IntParameter | FloatParameter,
    name: str,
    value: ParamValue,
    flags: Mapping[str, FlagValue],
) -> list[ParamValue]:
    """The parameter's values about the one at which both sides of the rule are equal."""
    flag = parameter.flag_names(name)[0]
    left, right = rule.left.value(flags), rule.right.value(flags)
    mine, other = (rule.left, right) if rule.left.flag == flag else (rule.right, left)
    own = mine.value(flags)
    # Flag and value go in step: a value in GiB sets a share of the memory.
    if other is None or not own or not mine.factor or isinstance(value, str | bool):
        return []
    equal = other / own * float(value)
    step = float(parameter.step) if parameter.step is not None else (parameter.high - parameter.low) * 1e-6
    steps = (equal - parameter.low) / step
    points = [parameter.low + step * at for at in (math.floor(steps) - 1, math.floor(steps), math.ceil(steps))]
    points += [equal, parameter.low + step * (math.ceil(steps) + 1)]
    inside = (min(max(point, parameter.low), parameter.high) for point in points)
    made: list[ParamValue] = [
        round(point) if isinstance(parameter, IntParameter) else tidy(point, distribution_of(parameter))
        for point in inside
    ]
    return [point for point in made if parameter.contains(point)]
