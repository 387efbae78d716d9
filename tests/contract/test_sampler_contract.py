"""What every sampler of a study must do, whatever it models: keep the space, repeat itself, survive any history.

A sampler is driven as a study drives it, by `OptunaSearch`; a new one joins by a line in `SAMPLERS`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from optimizer.core.engine_config import EngineConfig, FlagValue
from optimizer.core.errors import InputError
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.record import ParamValue, StudyRecord, TrialRecord
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.trial import Stage, TrialRole, TrialState
from optimizer.search_spaces import (
    BoolParameter,
    ChoiceParameter,
    FloatParameter,
    IntParameter,
    Parameter,
    Rule,
    SearchSpace,
)
from optimizer.storage import StudyStore, open_store
from optimizer.tuning.distributions import suggest
from optimizer.tuning.optuna_search import OptunaSearch
from optimizer.tuning.rule_keeping_sampler import STARTUP_TRIALS, RuleKeepingSampler
from optimizer.tuning.settings import Settings

METRIC = "output_tokens_per_s"
Outcome = Callable[[int, Mapping[str, ParamValue]], TrialRecord]


@dataclasses.dataclass(frozen=True)
class PlainResolver:
    """A space without fixed flags; the baseline is given as flags."""

    space: SearchSpace
    baseline: Mapping[str, FlagValue] = dataclasses.field(default_factory=dict)

    def resolve(self, params: Mapping[str, ParamValue], *, device_memory_bytes: int | None) -> EngineConfig:
        return self.space.resolve(
            params, engine="vllm", model="m", fixed_flags={}, env={}, device_memory_bytes=device_memory_bytes
        )

    def baseline_config(self, *, device_memory_bytes: int | None) -> EngineConfig:
        return EngineConfig("vllm", "m", self.baseline)

    def baseline_params(self, *, device_memory_bytes: int | None) -> tuple[dict[str, ParamValue], tuple[str, ...]]:
        return self.space.params_from_flags(self.baseline, device_memory_bytes=device_memory_bytes)


def rule_keeping(
    space: SearchSpace, *, seed: int = 0, baseline: Mapping[str, FlagValue] | None = None
) -> RuleKeepingSampler:
    resolved = Settings(PlainResolver(space, baseline or {}))
    return RuleKeepingSampler(space, resolved.broken_rules, fixed=resolved.fixed_proposals(), seed=seed)


SAMPLERS = {"rule_keeping": rule_keeping}


@pytest.fixture(params=SAMPLERS, scope="module")
def make_sampler(request) -> Callable[..., RuleKeepingSampler]:
    return SAMPLERS[request.param]


def search(sampler: RuleKeepingSampler, store: StudyStore | None = None, name: str = "s") -> OptunaSearch:
    return OptunaSearch(store, name, metric=METRIC, maximise=True, sampler=sampler)


def measured(number: int, value: float, violation: float) -> TrialRecord:
    verdict = Verdict.INFEASIBLE if violation > 0 else Verdict.FEASIBLE
    limit = Constraint("p99_e2e_ms", 800.0, 800.0 * math.exp(violation), None, None, violation, verdict)
    record = TrialRecord("s", number, TrialRole.SEARCH, TrialState(verdict.value))
    return dataclasses.replace(record, score=Score(METRIC, value, True, verdict, (limit,)))


def failed(number: int, violation: float | None = None) -> TrialRecord:
    failure = Failure(FailureKind.KV_CACHE_TOO_SMALL, Stage.LAUNCHING, Blame.CONFIG, "no", violation=violation)
    return TrialRecord("s", number, TrialRole.SEARCH, TrialState.FAILED, failure=failure)


def mixed(number: int, params: Mapping[str, ParamValue]) -> TrialRecord:
    """Failures, infeasible and feasible trials in turn; values follow the parameters."""
    if number % 4 == 3:
        return failed(number, 0.5)
    score = sum(float(v) if not isinstance(v, str) else len(v) for v in params.values())
    return measured(number, 100.0 + score % 50, 0.3 if number % 4 == 2 else -0.1)


def run(driven: OptunaSearch, trials: int, outcome: Outcome = mixed) -> list[dict[str, ParamValue]]:
    """Ask and tell that many trials; the proposals."""
    proposals = []
    for _ in range(trials):
        number, params = driven.ask()
        driven.tell(outcome(number, params))
        proposals.append(params)
    return proposals


def assert_kept(space: SearchSpace, proposal: Mapping[str, ParamValue]) -> None:
    """The proposal has exactly the parameters that exist under it, each in its range, and breaks no rule."""
    assert set(proposal) == set(space.active(proposal))
    space.check(proposal)
    assert space.broken_rules(space.flags(proposal, device_memory_bytes=None)) == ()


# --- any space, any outcome


@st.composite
def numbers(draw: st.DrawFn) -> Parameter:
    low = draw(st.integers(0, 20))
    if draw(st.booleans()):
        kind = draw(st.sampled_from(["plain", "log", "step"]))
        step = draw(st.integers(2, 5)) if kind == "step" else 1
        low = max(low, 1) if kind == "log" else low
        high = low + step * draw(st.integers(1, 40))
        return IntParameter(kind="int", low=low, high=high, log=kind == "log", step=step)
    kind = draw(st.sampled_from(["plain", "log", "step"]))
    if kind == "step":
        width = draw(st.sampled_from([0.1, 0.05, 0.25, 3.0]))
        high_at = round(low + width * draw(st.integers(1, 30)), 6)
        return FloatParameter(kind="float", low=float(low), high=high_at, step=width)
    start = draw(st.floats(1e-9 if kind == "log" else 0.0, 10.0))
    return FloatParameter(kind="float", low=start, high=start + draw(st.floats(1e-6, 10.0)), log=kind == "log")


choices = st.lists(st.integers(0, 9) | st.sampled_from("abc"), min_size=1, max_size=4, unique=True).map(
    lambda values: ChoiceParameter(kind="choice", choices=tuple(values))
)
switches = st.just(BoolParameter(kind="bool"))


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    """Two to six parameters, some conditional on earlier ones, with up to two rules between numbers."""
    parameters: dict[str, Parameter] = {}
    for index in range(draw(st.integers(2, 6))):
        parameter = draw(numbers() if index < 2 else st.one_of(numbers(), choices, switches))
        deciders = [n for n, p in parameters.items() if isinstance(p, ChoiceParameter | BoolParameter)]
        conditional: bool = draw(st.booleans())
        if deciders and conditional:
            name = draw(st.sampled_from(deciders))
            decider = parameters[name]
            value = draw(st.sampled_from(decider.values if isinstance(decider, ChoiceParameter) else (True, False)))
            parameter = parameter.model_copy(update={"when": {name: value}})
        parameters[f"knob-{index}"] = parameter
    numeric: list[str] = [name for name, p in parameters.items() if isinstance(p, IntParameter | FloatParameter)]
    rules = []
    for _ in range(draw(st.integers(0, 2))):
        one, other = draw(st.lists(st.sampled_from(numeric), min_size=2, max_size=2, unique=True))
        factor = draw(st.sampled_from(["", " * 2", " * 0.5"]))
        rules.append(Rule.parse(f"{one} {draw(st.sampled_from(['<=', '>', '!=']))} {other}{factor}"))
    return SearchSpace(parameters, tuple(rules))


OUTCOMES: dict[str, Outcome] = {
    "mixed": mixed,
    "all fail": lambda number, params: failed(number),
    "all equal": lambda number, params: measured(number, 100.0, -0.1),
    "all infeasible": lambda number, params: measured(number, 100.0 + number, 0.2),
}


@settings(max_examples=20, deadline=None)
@given(space=spaces(), seed=st.integers(0, 2**32), outcome=st.sampled_from(sorted(OUTCOMES)))
def test_every_proposal_keeps_conditions_rules_and_ranges(make_sampler, space, seed, outcome):
    driven = search(make_sampler(space, seed=seed))
    try:
        proposals = run(driven, STARTUP_TRIALS + 2, OUTCOMES[outcome])
    except InputError:
        # Two rules may leave next to nothing; a space without rules always has a setting.
        assume(not space.rules)
        raise
    assert proposals[1] == {}, "trial 1 sets no searched flag"
    for proposal in proposals[2:]:
        assert_kept(space, proposal)


# --- a space as people write them

SPACE = SearchSpace(
    {
        "max-num-seqs": IntParameter(kind="int", low=4, high=128, log=True),
        "max-num-batched-tokens": ChoiceParameter(kind="choice", choices=(64, 128, 256)),
        "gpu-memory-utilization": FloatParameter(kind="float", low=0.5, high=0.95, step=0.05),
        "enable-prefix-caching": BoolParameter(kind="bool"),
        "speculation": ChoiceParameter(
            kind="choice", sets={"none": {}, "ngram": {"speculative-config.method": "ngram"}}
        ),
        "num-speculative-tokens": IntParameter(
            kind="int",
            low=1,
            high=4,
            flag="speculative-config.num_speculative_tokens",
            when={"speculation": "ngram"},
        ),
    },
    (Rule.parse("max-num-seqs * 2 <= max-num-batched-tokens"),),
)


def test_the_rules_of_vllm_and_of_the_space_hold_for_every_proposal(make_sampler):
    for proposal in run(search(make_sampler(SPACE)), 16)[2:]:
        assert_kept(SPACE, proposal)
        assert proposal["max-num-seqs"] * 2 <= proposal["max-num-batched-tokens"]
        assert ("num-speculative-tokens" in proposal) == (proposal["speculation"] == "ngram")


def test_a_stepped_value_is_written_as_a_person_would(make_sampler):
    for proposal in run(search(make_sampler(SPACE)), 16)[2:]:
        assert len(str(proposal["gpu-memory-utilization"])) <= 4


def test_the_same_seed_gives_the_same_study_and_another_seed_another(make_sampler):
    one, again, other = (run(search(make_sampler(SPACE, seed=seed)), 11) for seed in (3, 3, 4))
    assert one == again
    assert one[2] != other[2], "the first that is drawn"


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """A database file with all tables and nothing in them."""
    file = tmp_path_factory.mktemp("empty") / "studies.db"
    with open_store(str(file)) as store, search(rule_keeping(SPACE), store):
        pass
    return file


@pytest.fixture
def stores(empty_database, tmp_path) -> Iterator[Callable[[], StudyStore]]:
    """Gives a new empty history at each call."""
    opened: list[StudyStore] = []

    def make() -> StudyStore:
        file = tmp_path / f"{len(opened)}.db"
        shutil.copyfile(empty_database, file)
        opened.append(open_store(str(file)))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def test_a_resumed_study_proposes_what_an_unbroken_one_would(make_sampler, stores):
    with search(make_sampler(SPACE, seed=9), stores()) as driven:
        unbroken = run(driven, 12)
    broken_store = stores()
    with search(make_sampler(SPACE, seed=9), broken_store) as driven:
        resumed = run(driven, 5)
    with search(make_sampler(SPACE, seed=9), broken_store) as driven:
        resumed += run(driven, 3)
        number, _ = driven.ask()
    with search(make_sampler(SPACE, seed=9), broken_store) as driven:
        assert driven.open_numbers() == [number] == [8]
        params = driven.ask_again(number)
        driven.tell(mixed(number, params))
        resumed += [params, *run(driven, 3)]
    assert resumed == unbroken
    assert unbroken == run(search(make_sampler(SPACE, seed=9)), 12), "a study in memory is the same study"


def test_what_is_asked_again_does_not_change_with_the_trial_itself(make_sampler, stores):
    """The trial's own recorded parameters are no experience to learn from, and a whole proposal is kept as it is."""
    store = stores()
    with search(make_sampler(SPACE), store) as driven:
        run(driven, 8)
        number, params = driven.ask()
    for seed in (0, 0, 1):
        with search(make_sampler(SPACE, seed=seed), store) as driven:
            assert driven.ask_again(number) == params


def test_a_proposal_cut_short_is_completed_as_it_was_drawn(make_sampler, stores, monkeypatch):
    """Whatever kind of proposal it is: random, modelled, or another."""
    expected = run(search(make_sampler(SPACE, seed=2)), 10)
    store, suggested = stores(), itertools.count()

    def suggest_some(trial, name, parameter):
        if next(suggested) >= 3:
            raise KeyboardInterrupt
        return suggest(trial, name, parameter)

    for number in range(10):
        with search(make_sampler(SPACE, seed=2), store) as driven, monkeypatch.context() as patch:
            suggested = itertools.count()
            patch.setattr("optimizer.tuning.optuna_search.suggest", suggest_some)
            with contextlib.suppress(KeyboardInterrupt):
                driven.ask()
        with search(make_sampler(SPACE, seed=2), store) as driven:
            params = driven.ask_again(number)
            assert params == expected[number]
            driven.tell(mixed(number, params))


def test_rules_that_contradict_each_other_are_named_and_others_are_not(make_sampler):
    rules = ["a <= b", "c >= 2", "a > b", "c <= 9"]
    space = SearchSpace(
        {name: IntParameter(kind="int", low=1, high=10) for name in "abc"}, tuple(map(Rule.parse, rules))
    )
    driven = search(make_sampler(space))
    run(driven, 2, lambda number, params: failed(number))
    with pytest.raises(InputError) as caught:
        driven.ask()
    assert {rule for rule in rules if rule in caught.value.message} == {"a <= b", "a > b"}
    assert caught.value.exit_code == 2


def test_a_rule_that_no_setting_keeps_is_named(make_sampler):
    space = SearchSpace({"a": IntParameter(kind="int", low=1, high=10)}, (Rule.parse("a > 10"),))
    driven = search(make_sampler(space))
    run(driven, 2, lambda number, params: failed(number))
    with pytest.raises(InputError, match="a > 10"):
        driven.ask()


def test_a_baseline_partly_outside_the_space_is_told_with_what_lies_inside(make_sampler):
    baseline: dict[str, FlagValue] = {"max-num-seqs": 4, "max-num-batched-tokens": 100, "block-size": 16}
    driven = search(make_sampler(SPACE, baseline=baseline))
    proposals = run(driven, STARTUP_TRIALS + 4)
    assert proposals[0] == {"max-num-seqs": 4, "speculation": "none"}
    for proposal in proposals[2:]:
        assert_kept(SPACE, proposal)


def test_a_baseline_at_the_edge_of_a_range_is_proposed_as_it_is(make_sampler):
    """Read back from flags a float may miss the edge by its last bit; Optuna would then draw another value."""
    space = SearchSpace({"x": FloatParameter(kind="float", low=0.1, high=0.3)})
    baseline = {"x": 0.3 + 1e-10}
    assert run(search(make_sampler(space, baseline=baseline)), 1) == [{"x": 0.3}]


def test_two_hundred_parameters(make_sampler):
    kinds: Iterator[Parameter] = itertools.cycle(
        [
            IntParameter(kind="int", low=1, high=1024, log=True),
            FloatParameter(kind="float", low=0.0, high=1.0),
            BoolParameter(kind="bool"),
            ChoiceParameter(kind="choice", choices=("a", "b", "c")),
        ]
    )
    space = SearchSpace({f"knob-{number}": next(kinds) for number in range(200)})
    for proposal in run(search(make_sampler(space)), STARTUP_TRIALS + 2)[2:]:
        assert len(proposal) == 200
        assert_kept(space, proposal)


def test_a_space_with_a_single_setting_proposes_it_again_and_again(make_sampler):
    space = SearchSpace({"only": ChoiceParameter(kind="choice", choices=("one",))})
    assert run(search(make_sampler(space)), 10)[2:] == [{"only": "one"}] * 8


def test_very_small_numbers_keep_their_value(make_sampler):
    space = SearchSpace({"tiny": FloatParameter(kind="float", low=1e-12, high=1e-10, log=True)})
    proposals = run(search(make_sampler(space)), 12)[2:]
    assert len({proposal["tiny"] for proposal in proposals}) > 5
    for proposal in proposals:
        space.check(proposal)


@pytest.mark.parametrize("outcome", [name for name in OUTCOMES if name != "mixed"])
def test_a_hopeless_history_does_not_stop_the_search(make_sampler, outcome):
    proposals = run(search(make_sampler(SPACE)), 12, OUTCOMES[outcome])[2:]
    for proposal in proposals:
        assert_kept(SPACE, proposal)
    assert len({tuple(sorted(proposal.items(), key=str)) for proposal in proposals}) > 4, "it still tries new settings"


def test_crashes_push_the_search_away(make_sampler):
    """Everything above 32 fails. A quarter of random proposals would lie below; with the crashes known, far more do."""
    space = SearchSpace({"max-num-seqs": IntParameter(kind="int", low=1, high=128)})

    def outcome(number: int, params: Mapping[str, ParamValue]) -> TrialRecord:
        value = float(params.get("max-num-seqs", 64))
        return failed(number, math.log(value / 32.0)) if value > 32 else measured(number, value, -0.1)

    late = [proposal for seed in range(3) for proposal in run(search(make_sampler(space, seed=seed)), 20, outcome)[8:]]
    assert sum(proposal["max-num-seqs"] <= 32 for proposal in late) >= 0.4 * len(late)


def test_opening_a_study_writes_no_trial(make_sampler, stores):
    store = stores()
    store.create_study(StudyRecord("s", datetime.now(UTC), {}, {}, METRIC, maximise=True))
    with search(make_sampler(SPACE), store) as driven:
        assert len(driven) == 0
        assert driven.open_numbers() == []
