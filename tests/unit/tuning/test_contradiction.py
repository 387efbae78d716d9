"""Rules that contradict each other are named, the fewest that do; rules that random draws never keep are kept."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.search_spaces import (
    BUILT_IN_RULES,
    BoolParameter,
    ChoiceParameter,
    FloatParameter,
    IntParameter,
    Rule,
    SearchSpace,
)
from optimizer.tuning.contradiction import contradiction
from optimizer.tuning.random_settings import random_setting
from optimizer.tuning.rule_repair import RuleRepair, settings_of


def whole(low, high):
    return IntParameter(kind="int", low=low, high=high)


def space(rules, **parameters):
    named = {name.replace("_", "-"): parameter for name, parameter in parameters.items()}
    return SearchSpace(named, tuple(map(Rule.parse, rules)))


def flags_of(searched, fixed=None):
    return lambda params: {**(fixed or {}), **searched.flags(params, device_memory_bytes=None)}


def named(searched, fixed=None):
    rules = (*BUILT_IN_RULES, *searched.rules)
    found = contradiction(searched, rules, flags_of(searched, fixed), np.random.default_rng(0))
    return {rule.text for rule in found.rules}, found


A_TO_D = {name: whole(1, 100_000) for name in "abcd"}


@pytest.mark.parametrize(
    ("rules", "culprits"),
    [
        (["a <= b", "c >= 2", "a > b", "c <= 9"], {"a <= b", "a > b"}),
        (["a <= b", "b * 2 <= a", "c > d"], {"a <= b", "b * 2 <= a"}),
        (["a == 517", "b * 3 == a * 2", "c != d"], {"a == 517", "b * 3 == a * 2"}),
        (["a > 100000", "a <= b", "b < a"], {"a > 100000"}),
        (["a < b", "b < c", "c < a", "d > 5"], {"a < b", "b < c", "c < a"}),
        (["a >= 99999", "b <= 2", "a <= b"], {"a >= 99999", "b <= 2", "a <= b"}),
    ],
)
def test_the_fewest_rules_that_contradict_each_other_are_named(rules, culprits):
    texts, found = named(space(rules, **A_TO_D))
    assert texts == culprits
    assert all(rule in found.words for rule in culprits)
    assert "1..100000" in found.words


def test_a_rule_of_vllm_is_named_beside_one_of_the_space():
    searched = space(
        ["max-num-batched-tokens < max-num-seqs"], max_num_seqs=whole(1, 8), max_num_batched_tokens=whole(1, 8)
    )
    texts, found = named(searched)
    assert texts == {"max-num-batched-tokens < max-num-seqs", "max-num-batched-tokens >= max-num-seqs"}
    assert found.is_proven
    assert "no setting of the space keeps both rules" in found.words


def test_a_flag_that_is_fixed_is_told_with_its_value():
    searched = space(["max-num-seqs * 8 <= max-num-batched-tokens"], max_num_seqs=whole(64, 128))
    texts, found = named(searched, {"max-num-batched-tokens": 256})
    assert texts == {"max-num-seqs * 8 <= max-num-batched-tokens"}
    assert "max-num-seqs is searched in 64..128, max-num-batched-tokens is fixed at 256" in found.words


def test_a_large_space_is_only_said_to_seem_contradictory():
    _, found = named(space(["a <= b", "a > b"], **A_TO_D))
    assert not found.is_proven
    assert "seem to contradict each other" in found.words


@pytest.mark.parametrize(
    "rules",
    [
        ["a == b", "b == c", "c == d"],
        ["a == 517", "b == a * 2", "c > 99998"],
        ["a * 1000 == b", "c <= 3", "d >= 99999"],
        ["a != 1", "a <= 2"],
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_rules_that_random_settings_never_keep_are_walked_to(rules, seed):
    searched = space(rules, **A_TO_D)
    rng = np.random.default_rng(seed)
    repair = RuleRepair(searched, flags_of(searched))
    found = [repair.walk(searched.rules, random_setting(searched.parameters, rng), rng) for _ in range(5)]
    kept = [full for full in found if full is not None]
    assert len(kept) >= 4
    for full in kept:
        searched.check(full)
        assert searched.broken_rules(searched.flags(full, device_memory_bytes=None)) == ()


@settings(max_examples=30)
@given(
    bounds=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=2, max_size=3),
    rules=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["<=", "<", "==", "!=", ">"]), st.sampled_from("abc")),
        min_size=1,
        max_size=4,
    ),
)
def test_what_is_named_contradicts_itself_and_no_part_of_it_does(bounds, rules):
    """Checked against every setting of a small space."""
    names = "abc"[: len(bounds)]
    texts = [f"{one} {sign} {other}" for one, sign, other in rules if {one, other} <= set(names)]
    searched = space(texts, **{n: whole(low, low + width) for n, (low, width) in zip(names, bounds, strict=True)})
    every = settings_of(searched, 1000)
    assert every is not None
    assert len(every) == np.prod([width + 1 for _, width in bounds])
    flags = functools.partial(searched.flags, device_memory_bytes=None)

    def can_hold(chosen):
        return any(all(rule.broken_by(flags(params)) is None for rule in chosen) for params in every)

    if can_hold(searched.rules):
        return
    _, found = named(searched)
    assert not can_hold(found.rules)
    if len(found.rules) <= 3:
        assert found.is_proven
        for rule in found.rules:
            assert can_hold([other for other in found.rules if other is not rule])


def test_every_setting_has_the_parameters_that_exist_in_it():
    searched = SearchSpace(
        {
            "depth": IntParameter(kind="int", low=1, high=2, when={"kind": "x"}),
            "kind": ChoiceParameter(kind="choice", choices=("x", "y")),
            "on": BoolParameter(kind="bool", when={"kind": "y"}),
            "share": FloatParameter(kind="float", low=0.0, high=1.0, step=0.5, when={"on": True}),
        }
    )
    every = settings_of(searched, 10)
    assert every is not None
    assert len(every) == 2 + 1 + 3
    for params in every:
        searched.check(params)
        assert set(params) == set(searched.active(params))
    assert settings_of(searched, 5) is None
    assert settings_of(space([], a=FloatParameter(kind="float", low=0.0, high=1.0)), 1000) is None
