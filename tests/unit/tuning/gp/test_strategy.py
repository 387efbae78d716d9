"""The search as a whole: it finds good settings of an invented engine and keeps to the space, whatever the history."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimizer.core.trial import TrialState
from optimizer.search_spaces import BoolParameter, ChoiceParameter, SearchSpace
from optimizer.tuning.gp.encoding import Encoding
from optimizer.tuning.gp.strategy import GpStrategy
from optimizer.tuning.prescreen import Misfit
from optimizer.tuning.strategy import Estimate, Params, Seen


def random_params(space, seed, number):
    encoding = Encoding(space)
    return encoding.params(encoding.drawn(np.random.default_rng([seed, number]), 1)[0])


def study(space, engine, seen_as, ask, seed, trials, *, strategy=None, first=6):
    history = [seen_as(0, {}, engine({}), 0.03)]
    while len(history) < trials:
        number = len(history)
        if strategy is None or number < first:
            params = random_params(space, seed, number)
        else:
            params = next(strategy.proposals(ask(history, seed=seed)))
        history.append(seen_as(number, params, engine(params), 0.03))
    return history


def best_true(engine, history):
    results = [engine(trial.params) for trial in history]
    return max((r[0] for r in results if not isinstance(r, float) and r[1] <= 0.0), default=0.0)


def history_of(space, engine, seen_as, count, seed=0):
    return [
        seen_as(n, params, engine(params), 0.03)
        for n, params in enumerate(random_params(space, seed, n) for n in range(count))
    ]


def test_it_comes_nearer_to_the_optimum_than_random_settings(space, engine, seen_as, ask):
    encoding = Encoding(space)
    many = map(encoding.params, encoding.drawn(np.random.default_rng(11), 4000))
    optimum = best_true(engine, [Seen(0, params, TrialState.FEASIBLE) for params in many])
    ours, random = [], []
    for seed in range(3):
        found = study(space, engine, seen_as, ask, seed, 25, strategy=GpStrategy(space))
        ours.append(optimum - best_true(engine, found))
        random.append(optimum - best_true(engine, study(space, engine, seen_as, ask, seed, 25)))
        crashes = sum(trial.crash is not None for trial in found[6:])
        assert crashes <= 6, "a third of random settings crash"
    assert np.median(ours) < 0.7 * np.median(random), (ours, random)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), count=st.integers(0, 12))
def test_every_proposal_is_a_new_setting_of_the_space_that_keeps_rules_and_may_start(
    space, engine, seen_as, ask, seed, count
):
    history = history_of(space, engine, seen_as, count, seed)
    pending = (random_params(space, seed, 77),)

    def keeps_rules(params):
        return params["max-num-batched-tokens"] >= 8 * params["max-num-seqs"]

    def misfit(params):
        return Misfit("too long", 0.3) if params["max-model-len"] > 16384 else None

    asked = ask(history, seed=seed, pending=pending, keeps_rules=keeps_rules, misfit=misfit)
    proposals = list(itertools.islice(GpStrategy(space).proposals(asked), 8))
    assert len(proposals) == 8
    assert asked.rejected == []
    for place, params in enumerate(proposals):
        space.check(params)
        assert set(params) == set(space.active(params))
        assert keeps_rules(params)
        assert misfit(params) is None
        assert params not in proposals[:place]
        assert params not in pending
    tried = [trial.params for trial in history]
    assert all(params not in tried for params in proposals[1:]), "only the first may be a repeat"


def test_the_same_history_and_number_give_the_same_proposals(space, engine, seen_as, ask):
    history = history_of(space, engine, seen_as, 10)
    once, again = (list(itertools.islice(GpStrategy(space).proposals(ask(history, seed=4)), 5)) for _ in range(2))
    assert once == again


def test_proposals_beside_pending_ones_lie_elsewhere(space, engine, seen_as, ask):
    history = history_of(space, engine, seen_as, 12)
    pending: list[Params] = []
    for _ in range(4):
        pending.append(next(GpStrategy(space).proposals(ask(history, pending=pending))))
    for one, other in itertools.combinations(pending, 2):
        assert one != other


@pytest.mark.parametrize("count", [1, 8])
def test_a_history_of_crashes_alone_still_gives_new_settings(space, seen_as, ask, count):
    history = [seen_as(n, random_params(space, 0, n), 0.7) for n in range(count)]
    strategy = GpStrategy(space)
    params = next(strategy.proposals(ask(history)))
    assert params not in [trial.params for trial in history]
    assert strategy.expected_gain is None


def test_no_history_at_all_gives_settings(space, ask):
    assert len(list(itertools.islice(GpStrategy(space).proposals(ask([])), 5))) == 5


def test_identical_results_and_values_that_are_no_numbers_are_no_difficulty(space, ask):
    odd = [1.0, 1.0, 1.0, np.nan, np.inf, -np.inf]
    history = [
        Seen(n, random_params(space, 0, n), TrialState.FEASIBLE, Estimate(v, 0.0), {"p99_e2e_ms": Estimate(v, np.nan)})
        for n, v in enumerate(odd)
    ]
    assert next(GpStrategy(space).proposals(ask(history)))


def test_a_space_with_one_value_ends_after_it(ask, seen_as):
    space = SearchSpace({"block-size": ChoiceParameter(kind="choice", choices=(16,))})
    strategy = GpStrategy(space)
    assert list(strategy.proposals(ask([]))) == [{"block-size": 16}]
    tried = [seen_as(n, {"block-size": 16}, (1.0, -1.0)) for n in range(3)]
    assert list(strategy.proposals(ask(tried))) == []


def test_two_hundred_parameters_work(ask, seen_as):
    space = SearchSpace({f"flag-{n}": BoolParameter(kind="bool", default=False) for n in range(200)})
    history = [seen_as(n, random_params(space, 0, n), (1.0 + 0.1 * n, -1.0)) for n in range(12)]
    begun_s = time.process_time()
    assert len(next(GpStrategy(space).proposals(ask(history)))) == 200
    assert time.process_time() - begun_s < 30.0


def test_the_gain_expected_falls_as_more_settings_turn_out_alike(space, seen_as, ask):
    gains = []
    strategy = GpStrategy(space)
    for count in (3, 25):
        history = [seen_as(n, random_params(space, 0, n), (1.0, -1.0)) for n in range(count)]
        proposals = strategy.proposals(ask(history))
        next(proposals)
        next(proposals)
        gains.append(strategy.expected_gain)
    assert 0.0 < gains[1] < 0.5 * gains[0] < 0.5
