"""The strategies that follow a plan: the grid of two flags, and one parameter after another."""

from __future__ import annotations

import itertools

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import create_trial

from optimizer.core.trial import TrialState
from optimizer.search_spaces import BoolParameter, ChoiceParameter, IntParameter, SearchSpace
from optimizer.tuning.prescreen import Misfit
from optimizer.tuning.strategies.grid import Grid
from optimizer.tuning.strategies.one_at_a_time import OneAtATime, rank
from optimizer.tuning.strategy import Ask, Estimate, Seen

SPACE = SearchSpace(
    {
        "block-size": ChoiceParameter(kind="choice", choices=(16, 32), default=16),
        "max-num-batched-tokens": ChoiceParameter(kind="choice", choices=(512, 1024, 2048), default=512),
        "max-num-seqs": IntParameter(kind="int", low=8, high=64, log=True, default=16),
        "enable-prefix-caching": BoolParameter(kind="bool", default=True),
    }
)
BASE = {"block-size": 16, "max-num-batched-tokens": 512, "max-num-seqs": 16, "enable-prefix-caching": True}


def ask(history, *, keeps_rules=lambda params: True, pending=()):
    study = optuna.create_study()
    if history:
        distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution((value,)) for name, value in history[0].params.items()
        }
        study.add_trial(create_trial(params=dict(history[0].params), distributions=distributions, value=1.0))
    return Ask(
        number=len(history),
        rng=np.random.default_rng(0),
        history=tuple(history),
        pending=pending,
        keeps_rules=keeps_rules,
        misfit=lambda params: None,
        study=study,
        trial=study.ask()._get_latest_trial(),
    )


def seen(number, params, value, *, state=TrialState.FEASIBLE, excess=-0.1):
    return Seen(number, params, state, value=Estimate(value, 0.01), limits={"p99_e2e_ms": Estimate(excess, 0.01)})


def walk(strategy, worth, trials):
    """As many proposals, each valued by `worth`; begins with the baseline."""
    history = [seen(0, BASE, worth(BASE))]
    for number in range(1, trials + 1):
        proposal = next(iter(strategy.proposals(ask(history))), None)
        if proposal is None:
            break
        history.append(seen(number, proposal, worth(proposal)))
    return [trial.params for trial in history]


def test_the_grid_varies_two_flags_and_leaves_the_rest_as_the_baseline_has_it():
    proposals = list(itertools.islice(Grid(SPACE).proposals(ask([seen(0, BASE, 1.0)])), 12))
    pairs = [(p["max-num-seqs"], p["max-num-batched-tokens"]) for p in proposals]
    every = list(itertools.product((8, 16, 32, 64), (512, 1024, 2048)))
    assert pairs[:11] == [pair for pair in every if pair != (16, 512)], "without the baseline's own"
    assert {(p["block-size"], p["enable-prefix-caching"]) for p in proposals} == {(16, True)}


def test_the_grid_skips_what_was_tried_or_runs_or_breaks_a_rule_and_comes_to_an_end():
    tried = seen(1, {**BASE, "max-num-seqs": 8}, 1.0)
    pending = ({**BASE, "max-num-seqs": 8, "max-num-batched-tokens": 1024},)
    asked = ask([seen(0, BASE, 1.0), tried], pending=pending, keeps_rules=lambda p: p["max-num-batched-tokens"] < 2048)
    proposals = list(Grid(SPACE).proposals(asked))
    assert tried.params not in proposals
    assert pending[0] not in proposals
    assert all(p["max-num-batched-tokens"] < 2048 for p in proposals)
    assert len({tuple(p.items()) for p in proposals}) <= len(proposals) < 40


def test_a_space_without_the_two_flags_is_walked_along_its_first_two():
    space = SearchSpace({"x": BoolParameter(kind="bool"), "y": BoolParameter(kind="bool")})
    proposals = [tuple(p.values()) for p in Grid(space).proposals(ask([]))]
    assert proposals[:4] == [(False, False), (False, True), (True, False), (True, True)]


def test_one_parameter_is_walked_and_its_best_value_kept_for_the_next():
    def worth(params):
        return params["max-num-seqs"] / 64 - abs(params["max-num-batched-tokens"] - 1024) / 1000

    settings = walk(OneAtATime(SPACE), worth, 5)
    assert [s["max-num-seqs"] for s in settings[1:4]] == [8, 32, 64], "in the usual order, not the declared one"
    assert all(s["max-num-batched-tokens"] == 512 for s in settings[:4])
    assert [s["max-num-batched-tokens"] for s in settings[4:6]] == [1024, 2048]
    assert all(s["max-num-seqs"] == 64 for s in settings[4:6])


def test_it_finds_the_optimum_of_what_is_separable_and_says_when_it_has_nothing_left():
    def worth(params):
        return params["max-num-seqs"] + params["max-num-batched-tokens"] / 100 + 5 * (params["block-size"] == 32)

    settings = walk(OneAtATime(SPACE), worth, 200)
    assert len(settings) < 60, "it ended"
    best = max(settings, key=worth)
    assert {**best, "enable-prefix-caching": True} == {
        "block-size": 32,
        "max-num-batched-tokens": 2048,
        "max-num-seqs": 64,
        "enable-prefix-caching": True,
    }


def test_a_rejected_value_is_passed_over():
    proposals = iter(OneAtATime(SPACE).proposals(asked := ask([seen(0, BASE, 1.0)])))
    first = next(proposals)
    asked.rejected.append((first, Misfit("too big", 0.3)))
    assert next(proposals)["max-num-seqs"] == 32


def test_feasible_ranks_before_undecided_before_broken_before_crashed():
    feasible = [seen(0, {}, 1.0), seen(0, {}, 2.0)]
    undecided = seen(0, {}, 9.0, state=TrialState.UNDECIDED, excess=0.01)
    broken = [seen(0, {}, 9.0, state=TrialState.INFEASIBLE, excess=e) for e in (0.5, 0.1)]
    crashed = [Seen(0, {}, TrialState.FAILED, crash=c) for c in (2.0, 0.5)]
    ordered = [None, *crashed, *broken, undecided, *feasible]
    assert sorted(ordered, key=rank) == ordered
    assert len({rank(trial) for trial in ordered}) == len(ordered)


@pytest.mark.parametrize("strategy", [Grid(SPACE), OneAtATime(SPACE)])
def test_without_a_baseline_the_defaults_are_where_it_begins(strategy):
    proposal = next(iter(strategy.proposals(ask([]))))
    assert proposal["block-size"] == 16
    assert proposal["enable-prefix-caching"] is True
