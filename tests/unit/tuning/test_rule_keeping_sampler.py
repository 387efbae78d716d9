"""In which order proposals come, and what is recorded of each; that all keep the space is the strategies' contract."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from optimizer.core.record import TrialRecord
from optimizer.core.scoring import Score, Verdict
from optimizer.core.trial import TrialRole, TrialState
from optimizer.search_spaces import BoolParameter, ChoiceParameter, IntParameter, Rule, SearchSpace
from optimizer.tuning.course import MAX_REJECTS
from optimizer.tuning.first_trials import FirstSetting
from optimizer.tuning.optuna_search import OptunaSearch
from optimizer.tuning.prescreen import Misfit
from optimizer.tuning.rule_keeping_sampler import MAX_DRAWS, RuleKeepingSampler
from optimizer.tuning.settings import Settings
from optimizer.tuning.strategies.random_search import RandomSearch

SPACE = SearchSpace(
    {
        "max-num-seqs": IntParameter(kind="int", low=1, high=64),
        "block-size": ChoiceParameter(kind="choice", choices=(16, 32, 64)),
        "enable-prefix-caching": BoolParameter(kind="bool"),
        "limit": IntParameter(kind="int", low=1, high=4, when={"enable-prefix-caching": True}),
    },
    (Rule.parse("max-num-seqs <= block-size"),),
)


class Scripted:
    """Proposes what it is given, and keeps what it was asked."""

    name = "scripted"

    def __init__(self, *proposals):
        self._proposals = proposals
        self.asked = []

    def proposals(self, ask):
        self.asked.append(ask)
        yield from self._proposals


class Study:
    """A study in memory; every trial is feasible and worth its sequences."""

    def __init__(self, resolver, strategy=None, **options):
        settings = Settings(resolver(SPACE, {"max-num-seqs": 8}), lambda: 2**33)
        self.records: list[TrialRecord] = []
        self.sampler = RuleKeepingSampler(
            SPACE,
            settings.broken_rules,
            fixed=settings.fixed_proposals(),
            seed=1,
            strategy=strategy or RandomSearch(SPACE),
            records=lambda: self.records,
            flags_of=settings.flags,
            **options,
        )
        self.search = OptunaSearch(None, "s", metric="m", maximise=True, sampler=self.sampler)

    def step(self):
        number, params = self.search.ask()
        score = Score("m", 1.0 + params.get("max-num-seqs", 0), True, Verdict.FEASIBLE)
        record = TrialRecord("s", number, TrialRole.SEARCH, TrialState.FEASIBLE, params=params, score=score)
        self.records.append(record)
        self.search.tell(record)
        return params, self.search.notes(number)

    def steps(self, count):
        return [self.step() for _ in range(count)]


@pytest.fixture
def study(resolver):
    return functools.partial(Study, resolver)


FIRST = [
    FirstSetting({"max-num-seqs": 30, "block-size": 32, "enable-prefix-caching": False}, "seqs matched to the pool"),
    FirstSetting({"max-num-seqs": 60, "block-size": 16, "enable-prefix-caching": False}, "breaks a rule"),
    FirstSetting({"max-num-seqs": 2, "block-size": 64}, "leaves something open"),
]


def test_fixed_then_first_then_flips_and_the_strategy(study):
    asked = study(first=FIRST).steps(9)
    assert [params for params, _ in asked[:2]] == [{"max-num-seqs": 8}, {}]
    assert asked[2] == (FIRST[0].params, ("first trial 1 of 3: seqs matched to the pool",))
    assert asked[3][1] == ("first trial 3 of 3: leaves something open",)
    assert asked[3][0]["max-num-seqs"] == 2
    assert set(asked[3][0]) == set(SPACE.active(asked[3][0])), "what was left open is filled in"
    why = [notes[0].partition("#")[0] for _, notes in asked[4:]]
    assert why == ["proposed by random", "flip of ", "proposed by random", "proposed by random", "flip of "]


def test_a_first_setting_that_cannot_start_is_passed_over_and_told(study):
    def check(params):
        return Misfit("too big", 0.3) if params.get("max-num-seqs") == 30 else None

    asked = study(first=FIRST, prescreen=lambda: check).steps(3)
    assert asked[2][1] == (
        "first trial 3 of 3: leaves something open",
        "1 proposal before this one was rejected unlaunched: too big",
    )


def test_a_first_setting_that_the_baseline_is_already_is_no_trial_of_its_own(study):
    baseline = [FirstSetting({"max-num-seqs": 8}, "the same")]
    plain = study(first=[*FIRST[:1], *FIRST[:1]]).steps(4)
    assert plain[3][1] == ("proposed by random",), "the second is the first again"
    assert study(first=baseline).steps(3)[2][1][0].startswith("first trial 1 of 1"), "that sets the other parameters"


def test_without_flips_there_are_none(study):
    assert all("flip" not in notes[0] for _, notes in study(flips=False).steps(12)[2:])


def test_the_strategy_is_told_history_and_what_runs_elsewhere(study):
    strategy = Scripted({"max-num-seqs": 4, "block-size": 16, "enable-prefix-caching": False})
    running = study(strategy, flips=False)
    running.steps(3)
    number, params = running.search.ask()
    running.search.ask()
    ask = strategy.asked[-1]
    assert [trial.number for trial in ask.history] == [0, 1, 2]
    assert ask.pending == (params,)
    assert ask.number == number + 1
    assert ask.keeps_rules({"max-num-seqs": 16, "block-size": 16})
    assert not ask.keeps_rules({"max-num-seqs": 17, "block-size": 16})


def test_where_the_strategy_has_nothing_to_say_a_setting_is_drawn_at_random(study):
    params, notes = study(Scripted(), flips=False).steps(3)[2]
    assert set(params) == set(SPACE.active(params))
    assert notes == ("drawn at random: scripted proposed nothing that could be launched",)


def test_what_is_drawn_at_random_for_want_of_proposals_repeats_no_trial(resolver):
    space = SearchSpace({"block-size": ChoiceParameter(kind="choice", choices=(16, 32, 64, 128))})
    for seed in range(8):
        strategy = Scripted()
        sampler = RuleKeepingSampler(
            space, lambda params: (), fixed={}, seed=seed, strategy=strategy, records=lambda: (), flips=False
        )
        search = OptunaSearch(None, "s", metric="m", maximise=True, sampler=sampler)
        assert sorted(search.ask()[1]["block-size"] for _ in range(4)) == [16, 32, 64, 128]


def test_a_setting_that_the_strategy_measures_again_is_said_to_be_one(study):
    again = {"max-num-seqs": 12, "block-size": 16, "enable-prefix-caching": False}
    asked = study(Scripted(again), flips=False).steps(4)
    assert [notes for _, notes in asked[2:]] == [("proposed by scripted",), ("proposed by scripted: #2 once more",)]


def test_a_strategy_that_breaks_the_rules_again_and_again_is_not_asked_for_ever(study):
    strategy = Scripted(*[{"max-num-seqs": 64, "block-size": 16}] * (MAX_DRAWS + 9))
    params, notes = study(strategy, flips=False).steps(3)[2]
    assert params["max-num-seqs"] <= params["block-size"]
    assert notes[0].startswith("drawn at random")


def test_no_more_than_so_many_are_rejected_in_one_ask(study):
    checked = []

    def check(params):
        checked.append(params)
        return Misfit("too big", 0.3) if len(checked) <= 500 and params["max-num-seqs"] != 1 else None

    strategy = Scripted(*[{"max-num-seqs": n % 15 + 2, "block-size": 16} for n in range(400)])
    params, notes = study(strategy, flips=False, prescreen=lambda: check).steps(3)[2]
    assert len(strategy.asked[0].rejected) == MAX_REJECTS
    assert params["max-num-seqs"] == 1
    assert notes[1].endswith("; this is the nearest setting that fits")


def test_what_the_strategy_expects_is_kept_with_the_trial(study):
    class Foreseeing(Scripted):
        expected_gain = 0.04

    running = study(Foreseeing({"max-num-seqs": 12, "block-size": 16, "enable-prefix-caching": False}))
    running.steps(6)
    flips = [number for number in range(2, 6) if running.search.notes(number)[0].startswith("flip")]
    assert flips == [5]
    assert running.search.expected_gain(3) is None, "a flip is left, of which nothing is expected"
    still = study(Foreseeing({"max-num-seqs": 12, "block-size": 16, "enable-prefix-caching": False}), flips=False)
    still.steps(4)
    assert still.search.expected_gain(2) == 0.04
    assert still.search.expected_gain(3) is None, "it proposed two"


def test_faults_of_the_host_are_not_told_to_the_strategy(study):
    strategy = Scripted({"max-num-seqs": 4, "block-size": 16, "enable-prefix-caching": False})
    running = study(strategy, flips=False)
    running.steps(2)
    running.records[1] = replace(running.records[1], state=TrialState.INTERRUPTED)
    running.search.ask()
    assert [trial.number for trial in strategy.asked[-1].history] == [0]
