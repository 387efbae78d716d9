"""Which rules of a space leave no setting between them: the fewest that do so alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.core.engine_config import FlagValue
from optimizer.core.record import ParamValue
from optimizer.search_spaces import Rule, SearchSpace
from optimizer.tuning.random_settings import random_setting
from optimizer.tuning.rule_repair import FlagsOf, RuleRepair

_MOST_RULES = 3
"""More than three rules that contradict each other only all together are told as all that are ever broken."""
_POOL = 300


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Rules of which no setting keeps all.

    Attributes:
        rules: One, two or three of them; or all that are ever broken, where no so few do it.
        is_proven: Every combination of what they depend on was looked at; otherwise a long search found none.
        about: What their flags may be, such as `max-num-seqs is searched in 4..128`.
    """

    rules: tuple[Rule, ...]
    is_proven: bool
    about: str

    @property
    def words(self) -> str:
        """A sentence that names them."""
        named = [f"`{rule.text}`" for rule in self.rules]
        found = "no setting of the space keeps" if self.is_proven else "no setting was found that keeps"
        if len(named) == 1:
            return f"{found} the rule {named[0]} ({self.about})"
        which = "both rules" if len(named) == 2 else "all of the rules"
        told = "the rules contradict each other" if self.is_proven else "the rules seem to contradict each other"
        return f"{told}: {found} {which} {' and '.join(named)} ({self.about})"


def contradiction(
    space: SearchSpace, rules: Sequence[Rule], flags_of: FlagsOf, rng: np.random.Generator
) -> Contradiction:
    """The fewest of these rules, which no setting was found to keep, that leave no setting alone.

    Args:
        space: The parameters.
        rules: All that hold.
        flags_of: What a setting is launched with.
        rng: Makes the search repeatable.
    """
    repair = RuleRepair(space, flags_of)
    pool = [_kept(space, rules, flags_of, random_setting(space.parameters, rng)) for _ in range(_POOL)]
    suspects = [index for index in range(len(rules)) if not all(index in kept for kept in pool)]
    for size in range(1, _MOST_RULES + 1):
        for chosen in itertools.combinations(suspects, size):
            if any(kept.issuperset(chosen) for kept in pool):
                continue
            found, certain = repair.any_keeping([rules[index] for index in chosen], rng)
            if found is None:
                picked = tuple(rules[index] for index in chosen)
                return Contradiction(picked, certain, _about(space, picked, flags_of))
            pool.append(_kept(space, rules, flags_of, found))
    picked = tuple(rules[index] for index in suspects)
    return Contradiction(picked, False, _about(space, picked, flags_of))


def _kept(
    space: SearchSpace, rules: Sequence[Rule], flags_of: FlagsOf, full: Mapping[str, ParamValue]
) -> frozenset[int]:
    flags = flags_of(space.existing(full))
    return frozenset(index for index, rule in enumerate(rules) if rule.broken_by(flags) is None)


def _about(space: SearchSpace, rules: Sequence[Rule], flags_of: FlagsOf) -> str:
    fixed: Mapping[str, FlagValue] = flags_of({})
    told: dict[str, str] = {}
    for flag in (flag for rule in rules for flag in (*rule.flags, *rule.only_if)):
        searched = [p.domain for name, p in space.parameters.items() if flag in p.flag_names(name)]
        if searched:
            told[flag] = f"{flag} is searched in {' or '.join(searched)}"
        elif flag in fixed:
            told[flag] = f"{flag} is fixed at {fixed[flag]}"
    return ", ".join(told.values()) or "nothing in the space sets their flags"
