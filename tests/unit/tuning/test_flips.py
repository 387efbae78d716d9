"""Flips: one choice of the incumbent changed to what was never tried beside it."""

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, IntParameter, SearchSpace
from optimizer.tuning.flips import Flip, incumbent, shuffled, untried_flips
from optimizer.tuning.rule_keeping_sampler import RuleKeepingSampler
from optimizer.tuning.strategies.random_search import RandomSearch

SPACE = SearchSpace(
    {
        "block-size": ChoiceParameter(kind="choice", choices=(16, 32, 64), default=16),
        "enable-prefix-caching": BoolParameter(kind="bool", default=True),
        "speculation": ChoiceParameter(
            kind="choice",
            sets={"none": {}, "ngram": {"speculative-config.method": "ngram"}},
            default="none",
        ),
        "num-speculative-tokens": IntParameter(
            kind="int",
            low=1,
            high=4,
            flag="speculative-config.num_speculative_tokens",
            when={"speculation": "ngram"},
        ),
        "max-num-seqs": IntParameter(kind="int", low=1, high=64, log=True),
    }
)
DISTRIBUTIONS = {
    "block-size": CategoricalDistribution((16, 32, 64)),
    "enable-prefix-caching": CategoricalDistribution((False, True)),
    "speculation": CategoricalDistribution(("none", "ngram")),
    "num-speculative-tokens": IntDistribution(1, 4),
    "max-num-seqs": IntDistribution(1, 64, log=True),
}


def make_sampler(broken_rules, *, seed):
    return RuleKeepingSampler(
        SPACE, broken_rules, fixed={}, seed=seed, strategy=RandomSearch(SPACE), records=lambda: ()
    )


def add(study, params, value, *, violation=-1.0, state=TrialState.COMPLETE):
    study.add_trial(
        create_trial(
            params=params,
            distributions={name: DISTRIBUTIONS[name] for name in params},
            value=value,
            state=state,
            constraints={"p99_e2e_ms": violation},
        )
    )


@pytest.fixture(params=["maximize", "minimize"])
def study(request):
    return optuna.create_study(direction=request.param)


def test_the_incumbent_is_feasible_and_the_best_in_the_studys_direction(study):
    assert incumbent(study) is None
    add(study, {"max-num-seqs": 8}, 5.0)
    add(study, {"max-num-seqs": 9}, 7.0)
    add(study, {"max-num-seqs": 10}, 9.0, violation=0.1)
    add(study, {"max-num-seqs": 11}, 1.0, violation=0.1)
    add(study, {"max-num-seqs": 12}, None, state=TrialState.PRUNED)
    best = incumbent(study)
    assert best is not None
    assert best.value == (7.0 if study.direction is optuna.study.StudyDirection.MAXIMIZE else 5.0)


def test_flips_change_one_choice_and_leave_the_rest(study):
    base = {"block-size": 16, "enable-prefix-caching": True, "speculation": "none", "max-num-seqs": 8}
    add(study, base, 1.0)
    flips = untried_flips(study, SPACE, study.trials[0])
    assert [flip.params for flip in flips] == [
        {**base, "block-size": 32},
        {**base, "block-size": 64},
        {**base, "enable-prefix-caching": False},
        {**base, "speculation": "ngram"},
    ]


def test_what_was_tried_beside_the_incumbent_is_not_tried_again(study):
    base = {"block-size": 16, "enable-prefix-caching": True, "speculation": "none", "max-num-seqs": 8}
    add(study, base, 1.0)
    add(study, {**base, "block-size": 32}, None, violation=1.0, state=TrialState.PRUNED)
    add(study, {**base, "speculation": "ngram", "num-speculative-tokens": 3}, 0.5)
    flips = untried_flips(study, SPACE, study.trials[0])
    assert [flip.params for flip in flips] == [{**base, "block-size": 64}, {**base, "enable-prefix-caching": False}]
    assert flips[0].words == "flip of #0: block-size 64 in place of 16"


def test_what_runs_elsewhere_is_not_tried_again(study):
    base: dict[str, ParamValue] = {
        "block-size": 16,
        "enable-prefix-caching": True,
        "speculation": "none",
        "max-num-seqs": 8,
    }
    add(study, base, 1.0)
    pending: list[dict[str, ParamValue]] = [
        {**base, "block-size": 32},
        {**base, "speculation": "ngram", "num-speculative-tokens": 3},
    ]
    flips = untried_flips(study, SPACE, study.trials[0], pending)
    assert [flip.params for flip in flips] == [{**base, "block-size": 64}, {**base, "enable-prefix-caching": False}]


def test_a_trial_that_sets_nothing_is_flipped_from_the_defaults(study):
    seqs = IntParameter(kind="int", low=1, high=64, log=True, default=32)
    space = SearchSpace({**SPACE.parameters, "max-num-seqs": seqs})
    add(study, {}, 1.0)
    flips = [flip.params for flip in untried_flips(study, space, study.trials[0])]
    assert {"block-size": 32, "enable-prefix-caching": True, "speculation": "none", "max-num-seqs": 32} in flips


def test_a_trial_that_leaves_open_what_has_no_default_has_no_flips(study):
    """Its parameter would have to be given a value that was never tried beside the rest: two changes, not one."""
    add(study, {"block-size": 16}, 1.0)
    assert untried_flips(study, SPACE, study.trials[0]) == []
    add(study, {"max-num-seqs": 8}, 1.0)
    assert len(untried_flips(study, SPACE, study.trials[1])) == 4


def test_the_order_is_random_but_the_same_for_the_same_seed():
    flips = [Flip(0, "block-size", -1, {"block-size": value}) for value in range(20)]
    assert shuffled(flips, np.random.default_rng(1)) == shuffled(flips, np.random.default_rng(1))
    assert shuffled(flips, np.random.default_rng(1)) != flips
    assert sorted(flip.params["block-size"] for flip in shuffled(flips, np.random.default_rng(1))) == list(range(20))


def test_every_third_proposal_is_a_flip_with_its_new_parameters_filled_in(study):
    sampler = make_sampler(lambda params: (), seed=3)
    base = {"block-size": 16, "enable-prefix-caching": True, "speculation": "none", "max-num-seqs": 8}
    add(study, base, 1.0)
    for value in (32, 64):
        add(study, {**base, "block-size": value}, 1.0, violation=1.0)
    add(study, {**base, "enable-prefix-caching": False}, 1.0, violation=1.0)
    add(study, {**base, "max-num-seqs": 9}, 1.0, violation=1.0)
    study.sampler = sampler
    flip = study.ask().relative_params
    assert {name: flip[name] for name in base} == {**base, "speculation": "ngram"}
    assert flip["num-speculative-tokens"] in range(1, 5)


def test_a_flip_that_breaks_a_rule_is_passed_over(study):
    base = {"block-size": 16, "enable-prefix-caching": True, "speculation": "none", "max-num-seqs": 8}
    add(study, base, 1.0)
    add(study, {**base, "max-num-seqs": 9}, 1.0, violation=1.0)
    study.sampler = make_sampler(lambda params: () if params["block-size"] == 64 else ("block-size == 64",), seed=0)
    assert study.ask().relative_params["block-size"] == 64
