"""How many cards an engine takes, and the most that a study's engines take."""

from __future__ import annotations

import pytest

from optimizer.core.engine_config import EngineConfig
from optimizer.search_spaces import BoolParameter, ChoiceParameter, IntParameter, Rule, SearchSpace
from optimizer.tuning.gpu_count import gpus_of, most_gpus
from optimizer.tuning.settings import Settings

TP, PP, DP = "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"
TP_CHOICE = ChoiceParameter(kind="choice", choices=(1, 2, 4))
SEQS = IntParameter(kind="int", low=4, high=128, log=True)


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ({}, 1),
        ({TP: 2}, 2),
        ({TP: 2, PP: 3, DP: 4}, 24),
        ({"tensor_parallel_size": 8}, 8),
        ({"prefill-context-parallel-size": 2, TP: 2}, 4),
        ({"decode-context-parallel-size": 2, TP: 4}, 4),
        ({DP: 8, "data-parallel-size-local": 2}, 2),
        ({TP: "auto"}, 1),
    ],
)
def test_an_engine_takes_its_world_size_times_its_replicas_here(flags, count):
    assert gpus_of(EngineConfig("vllm", "m", flags)) == count


@pytest.fixture
def most(resolver):
    def count(parameters, *rules, baseline=None) -> int:
        space = SearchSpace(parameters, tuple(Rule.parse(rule) for rule in rules))
        return most_gpus(Settings(resolver(space=space, baseline=baseline or {})))

    return count


def test_a_space_without_such_flags_needs_one_card(most):
    assert most({"max-num-seqs": SEQS}) == 1


def test_the_baseline_counts(most):
    assert most({"max-num-seqs": SEQS}, baseline={TP: 4}) == 4


def test_choices_and_ranges_count_with_their_largest(most):
    pipeline = IntParameter(kind="int", low=1, high=3)
    assert most({TP: TP_CHOICE, PP: pipeline, "max-num-seqs": SEQS}) == 12


def test_a_rule_between_them_holds(most):
    pipeline = IntParameter(kind="int", low=1, high=4)
    assert most({TP: TP_CHOICE, PP: pipeline}, f"{PP} <= 2") == 8


def test_bundles_exclude_each_other(most):
    layout = ChoiceParameter(kind="choice", sets={"tp": {TP: 4}, "pp": {PP: 4}, "both": {TP: 2, PP: 3}})
    assert most({"layout": layout}) == 6


def test_a_parameter_that_depends_on_another_counts_only_beside_it(most):
    parameters = {
        "many": BoolParameter(kind="bool", flag="enable-expert-parallel"),
        TP: ChoiceParameter(kind="choice", choices=(2, 8), when={"many": True}),
        PP: ChoiceParameter(kind="choice", choices=(2, 5), when={"many": False}),
    }
    assert most(parameters) == 8
