"""What is recommended: only what was measured feasible, by posterior and not by luck."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.core.engine_config import EngineConfig
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.record import TrialRecord
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.trial import Stage, TrialRole, TrialState
from optimizer.search_spaces import ChoiceParameter, IntParameter, SearchSpace
from optimizer.tuning.recommend import changes, recommend

SPACE = SearchSpace(
    {
        "max-num-seqs": ChoiceParameter(kind="choice", choices=(16, 32, 64, 128, 256), default=32),
        "block-size": ChoiceParameter(kind="choice", choices=(16, 32, 64), default=16),
        "max-num-batched-tokens": IntParameter(kind="int", low=512, high=8192, log=True, default=2048),
    }
)
STATES = {
    Verdict.FEASIBLE: TrialState.FEASIBLE,
    Verdict.INFEASIBLE: TrialState.INFEASIBLE,
    Verdict.UNDECIDED: TrialState.UNDECIDED,
}


def trial(number, params, value=100.0, share=0.5, *, verdict=None, maximise=True, sd=0.02, role=TrialRole.SEARCH):
    """A measured trial; `share` is what it takes of its limit of 1000 ms."""
    verdict = verdict or (Verdict.FEASIBLE if share <= 1.0 else Verdict.INFEASIBLE)
    half = 1.96 * sd
    limit = Constraint(
        "p99_e2e_ms",
        1000.0,
        1000.0 * share,
        1000.0 * share * math.exp(-half),
        1000.0 * share * math.exp(half),
        math.log(share),
        verdict,
        confidence=0.95,
    )
    score = Score(
        "output_tokens_per_s",
        value,
        maximise,
        verdict,
        (limit,),
        low=value * math.exp(-half),
        high=value * math.exp(half),
        confidence=0.95,
    )
    flags = {**{name: p.default for name, p in SPACE.parameters.items()}, **params}
    return TrialRecord("s", number, role, STATES[verdict], params, EngineConfig("vllm", "m", flags), score=score)


def failed(number, params):
    failure = Failure(FailureKind.ENGINE_CRASH, Stage.LAUNCHING, Blame.CONFIG, "it fell")
    return TrialRecord("s", number, TrialRole.SEARCH, TrialState.FAILED, params, failure=failure)


def test_nothing_is_recommended_where_nothing_is_feasible():
    assert recommend([], SPACE) is None
    assert recommend([failed(0, {})], SPACE) is None
    assert recommend([trial(0, {}, share=1.5), trial(1, {"block-size": 32}, verdict=Verdict.UNDECIDED)], SPACE) is None


def test_the_best_that_keeps_its_limits_surely_goes_before_one_that_may_not():
    trials = [
        trial(0, {"max-num-seqs": 32}, 100.0, 0.6),
        trial(1, {"max-num-seqs": 64}, 130.0, 0.8),
        trial(2, {"max-num-seqs": 128}, 160.0, 0.99),
        trial(3, {"max-num-seqs": 256}, 200.0, 1.3),
    ]
    found = recommend(trials, SPACE)
    assert found.number == 1
    assert found.probability >= 0.95
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(130.0, rel=0.05)
    assert found.reason.startswith("the best of 3 settings measured feasible")


def test_when_none_is_sure_it_is_the_most_probable_and_says_so():
    trials = [trial(0, {"max-num-seqs": 64}, 150.0, 0.995), trial(1, {"max-num-seqs": 32}, 100.0, 0.98)]
    found = recommend(trials, SPACE)
    assert found.number == 1
    assert not found.is_sure
    assert "none keeps all limits with 95% probability" in found.reason
    assert "measured again" in found.reason


def test_repeats_count_together():
    """One lucky run does not outweigh two others of the same setting."""
    lucky = {"max-num-seqs": 128}
    trials = [
        trial(0, {}, 100.0, 0.6),
        trial(1, lucky, 150.0, 0.9, sd=0.05),
        trial(2, lucky, 150.0, 1.1, sd=0.05),
        trial(3, lucky, 150.0, 1.08, sd=0.05),
    ]
    assert recommend(trials[:2], SPACE).number == 1
    assert recommend(trials, SPACE).number == 0
    again = recommend([*trials[:2], replace(trials[1], number=2)], SPACE)
    assert (again.number, again.runs) == (1, 2)


def test_a_near_tie_goes_to_the_setting_nearer_the_default():
    busy = {"block-size": 64, "max-num-batched-tokens": 4096}
    assert changes(SPACE, busy) == 2
    trials = [trial(0, {}, 100.0, 0.5), trial(1, busy, 100.4, 0.5)]
    found = recommend(trials, SPACE)
    assert found.number == 0
    assert "within noise of trial 1" in found.reason
    clear = recommend([trials[0], trial(1, busy, 140.0, 0.5)], SPACE)
    assert clear.number == 1


def test_a_minimised_objective_is_given_in_its_own_unit():
    trials = [
        trial(0, {"max-num-seqs": 16}, 900.0, 0.5, maximise=False),
        trial(1, {"max-num-seqs": 32}, 500.0, 0.5, maximise=False),
        trial(2, {"max-num-seqs": 64}, 700.0, 0.5, maximise=False),
    ]
    found = recommend(trials, SPACE)
    assert found.number == 1
    assert found.low < found.value < found.high < 900.0


def test_a_confirmation_on_other_traffic_is_not_recommended_nor_counted():
    trials = [trial(0, {}, 100.0, 0.5), trial(1, {"max-num-seqs": 64}, 500.0, 0.5, role=TrialRole.CONFIRM)]
    assert recommend(trials, SPACE).number == 0


OUTCOME = st.tuples(
    st.sampled_from(["failed", *Verdict]),
    st.sampled_from([16, 32, 64, 128, 256]),
    st.sampled_from([16, 32, 64]),
    st.one_of(st.floats(1e-3, 1e6), st.sampled_from([math.inf, math.nan, 0.0])),
    st.floats(0.01, 30.0),
    st.sampled_from([TrialRole.SEARCH, TrialRole.SEARCH, TrialRole.CONFIRM]),
)


@settings(max_examples=20)
@given(outcomes=st.lists(OUTCOME, max_size=9), maximise=st.booleans())
def test_only_a_setting_that_was_measured_feasible_is_ever_recommended(outcomes, maximise):
    trials = [
        failed(n, {"max-num-seqs": seqs, "block-size": block})
        if state == "failed"
        else trial(
            n, {"max-num-seqs": seqs, "block-size": block}, value, share, verdict=state, maximise=maximise, role=role
        )
        for n, (state, seqs, block, value, share, role) in enumerate(outcomes)
    ]
    found = recommend(trials, SPACE)
    allowed = [
        t.number
        for t in trials
        if t.state is TrialState.FEASIBLE and t.role is not TrialRole.CONFIRM and 0.0 < t.score.value < math.inf
    ]
    assert (found is None) == (not allowed)
    if found is not None:
        assert found.number in allowed
        assert 0.0 <= found.probability <= 1.0
        assert found.low <= found.value <= found.high
