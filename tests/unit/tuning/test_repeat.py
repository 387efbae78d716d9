"""When the best so far is measured again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optimizer.core.scoring import Verdict
from optimizer.core.trial import TrialState
from optimizer.search_spaces import ChoiceParameter, SearchSpace
from optimizer.tuning.gp.encoding import Encoding
from optimizer.tuning.gp.outlook import outlook
from optimizer.tuning.recommend import standing_of
from optimizer.tuning.repeat import REPEAT_EVERY, to_repeat
from optimizer.tuning.strategy import Estimate, Seen

SPACE = SearchSpace(
    {
        "max-num-seqs": ChoiceParameter(kind="choice", choices=(16, 32, 64, 128, 256)),
        "block-size": ChoiceParameter(kind="choice", choices=(16, 32, 64)),
    }
)


def run(number, seqs, value, excess, block=16):
    verdict = Verdict.FEASIBLE if excess <= 0 else Verdict.INFEASIBLE
    state = TrialState.FEASIBLE if excess <= 0 else TrialState.INFEASIBLE
    params = {"max-num-seqs": seqs, "block-size": block}
    return Seen(number, params, state, Estimate(value, 0.02), {"p99": Estimate(excess, 0.03)}, {"p99": verdict})


def repeated(history, hoped=0.0):
    expected = outlook(history, Encoding(SPACE))
    return to_repeat(history, expected, standing_of(history, expected, SPACE), hoped)


SURE = [run(0, 16, 1.0, -0.6), run(1, 32, 1.5, -0.4)]
JUST_UNDER = [*SURE, run(2, 64, 2.0, -0.03), run(3, 16, 1.0, -0.6, block=32)]


def test_a_new_best_is_measured_again():
    assert repeated(SURE) == {"max-num-seqs": 32, "block-size": 16}
    assert repeated(SURE, hoped=1.0) == {"max-num-seqs": 32, "block-size": 16}


def test_a_best_that_is_no_news_and_sure_is_not():
    assert repeated([*SURE, run(2, 16, 1.0, -0.6, block=32)]) is None


def test_one_just_under_its_limit_is_even_when_it_is_no_news():
    assert repeated(JUST_UNDER) == {"max-num-seqs": 64, "block-size": 16}


def test_one_that_was_undecided_is_though_it_may_not_be_recommended_yet():
    undecided = replace(run(2, 64, 2.0, -0.03), state=TrialState.UNDECIDED, verdicts={"p99": Verdict.UNDECIDED})
    assert repeated([*SURE, undecided, run(3, 16, 1.0, -0.6, block=32)]) == {"max-num-seqs": 64, "block-size": 16}
    assert repeated([replace(undecided, number=0)]) == {"max-num-seqs": 64, "block-size": 16}


def test_it_is_not_where_a_new_setting_promises_more():
    assert repeated(JUST_UNDER, hoped=0.6) is None


def test_one_that_would_gain_nothing_is_not_however_doubtful():
    history = [*SURE, run(2, 64, 1.2, -0.03), run(3, 16, 1.0, -0.6, block=32)]
    assert repeated(history) is None


def test_while_none_is_sure_the_best_chance_to_know_one_is_taken():
    history = [run(0, 64, 2.0, -0.03), run(1, 128, 2.3, 0.3), run(2, 256, 2.3, 0.4)]
    assert repeated(history) == {"max-num-seqs": 64, "block-size": 16}


def test_one_that_is_probably_over_a_limit_is_not():
    assert repeated([run(0, 16, 1.0, -0.6), run(1, 64, 2.0, 0.3)]) is None
    assert repeated([run(0, 64, 2.0, 0.3)]) is None


def test_a_setting_has_four_runs_at_most():
    doubtful = [run(number, 64, 2.0, -0.005) for number in range(3, 6)]
    assert repeated([*JUST_UNDER[:3], *doubtful[:2]]) == {"max-num-seqs": 64, "block-size": 16}
    assert repeated([*JUST_UNDER[:3], *doubtful]) is None


@pytest.mark.parametrize("between", range(1, REPEAT_EVERY + 1))
def test_repeats_of_what_is_only_new_are_rare(between):
    blocks = [(16, 32), (16, 64), (32, 32), (32, 64), (64, 64)]
    history = [*SURE, run(2, 32, 1.5, -0.4)]
    history += [run(3 + n, seqs, 0.5, -0.8, block) for n, (seqs, block) in enumerate(blocks[: between - 1])]
    history.append(run(len(history), 64, 2.0, -0.4))
    assert (repeated(history) is None) == (between < REPEAT_EVERY - 1)


def test_nothing_is_without_a_feasible_trial():
    assert repeated([]) is None
    assert repeated([Seen(0, {"max-num-seqs": 16}, TrialState.FAILED, crash=0.5)]) is None
