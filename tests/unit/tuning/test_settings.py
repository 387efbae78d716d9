"""From a trial's role and parameters to what is launched, at the memory this host has at that moment."""

from __future__ import annotations

import pytest

from optimizer.core.trial import TrialRole
from optimizer.search_spaces import IntParameter, Rule, SearchSpace
from optimizer.tuning.settings import Settings, role_of

GIB = 2**30


def test_the_first_two_trials_have_roles_of_their_own():
    roles = [role_of(number) for number in range(4)]
    assert roles == [TrialRole.BASELINE, TrialRole.DEFAULT, TrialRole.SEARCH, TrialRole.SEARCH]


def test_memory_is_a_fraction_of_what_the_host_has_now(resolver):
    sizes = iter([8 * GIB, 10 * GIB])
    settings = Settings(resolver(), lambda: next(sizes))
    before, later = (settings.resolve(TrialRole.SEARCH, {"engine-memory": 2.0}) for _ in range(2))
    assert before.config.flags["gpu-memory-utilization"] == 0.25
    assert later.config.flags["gpu-memory-utilization"] == 0.2
    assert before.memory_gib == later.memory_gib == 2.0


def test_a_trial_that_declares_no_memory_expects_none(resolver):
    settings = Settings(resolver(), lambda: 8 * GIB)
    assert settings.resolve(TrialRole.SEARCH, {"block-size": 16}).memory_gib is None


def test_without_declared_memory_a_fraction_is_left_alone(resolver):
    settings = Settings(resolver(baseline={"gpu-memory-utilization": 0.9}))
    resolved = settings.resolve(TrialRole.BASELINE, {})
    assert (resolved.config.flags["gpu-memory-utilization"], resolved.memory_gib) == (0.9, None)


def test_the_baseline_is_launched_as_it_is_whatever_its_parameters(resolver):
    settings = Settings(resolver(baseline={"max-num-seqs": 999, "swap-space": 4}), lambda: 8 * GIB)
    resolved = settings.resolve(TrialRole.BASELINE, {"block-size": 16})
    assert dict(resolved.config.flags) == {"max-num-seqs": 999, "swap-space": 4}


def test_only_what_lies_in_the_space_is_proposed_for_the_baseline(resolver):
    settings = Settings(
        resolver(baseline={"max-num-seqs": 999, "block-size": 16, "gpu-memory-utilization": 0.25}), lambda: 8 * GIB
    )
    assert settings.fixed_proposals() == {0: {"block-size": 16, "engine-memory": 2.0}, 1: {}}
    assert settings.baseline_outside() == ("max-num-seqs",)


@pytest.mark.parametrize(
    ("params", "broken"),
    [
        ({"max-num-seqs": 64, "max-num-batched-tokens": 128}, ()),
        ({"max-num-seqs": 65, "max-num-batched-tokens": 128}, ("max-num-seqs * 2 <= max-num-batched-tokens",)),
        (
            {"max-num-seqs": 200, "max-num-batched-tokens": 128},
            ("max-num-batched-tokens >= max-num-seqs", "max-num-seqs * 2 <= max-num-batched-tokens"),
        ),
    ],
)
def test_rules_of_vllm_and_of_the_space_are_named_as_they_were_written(resolver, params, broken):
    space = SearchSpace(
        {name: IntParameter(kind="int", low=1, high=256) for name in ("max-num-seqs", "max-num-batched-tokens")},
        (Rule.parse("max-num-seqs * 2 <= max-num-batched-tokens"),),
    )
    assert Settings(resolver(space)).broken_rules(params) == broken
