"""What a confirmation says, and where else it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optimizer.core.confirmation import Arm, arm_of, confirmation_number
from optimizer.core.trial import TrialRole
from optimizer.objectives.confirmation import judge_confirmation
from optimizer.report.closing import print_closing
from optimizer.report.confirm_view import confirmation_text, confirmation_view, print_confirmation
from optimizer.report.status_view import print_studies, print_study


def repeats(sample, baseline: list[float], winner: list[float]):
    """The sample's trials with runs that confirm its best, #2."""
    values = {Arm.BASELINE: iter(baseline), Arm.WINNER: iter(winner)}
    of = {Arm.BASELINE: sample.trials[0], Arm.WINNER: sample.trials[2]}
    runs = []
    for run in range(6):
        arm = arm_of(run)
        score = replace(of[arm].score, value=next(values[arm]))
        runs.append(replace(of[arm], number=confirmation_number(2, run), role=TrialRole.CONFIRM, score=score))
    return [*sample.trials, *runs]


@pytest.fixture
def confirmed(sample):
    return repeats(sample, [400.0, 404.0, 396.0], [520.0, 525.0, 515.0])


def test_the_outcome_is_one_line(sample, confirmed):
    found = judge_confirmation(confirmed, 2, maximise=True)
    assert found is not None
    assert confirmation_text(found) == "confirmed: +30 % (95 % interval +27 % to +33 %)"


def test_an_interval_that_holds_no_difference_is_undecided(sample):
    trials = repeats(sample, [400.0, 500.0, 390.0], [520.0, 410.0, 515.0])
    found = judge_confirmation(trials, 2, maximise=True)
    assert found is not None
    text = confirmation_text(found)
    assert text.startswith("undecided: +12 % (95 % interval -")
    assert text.endswith("no difference lies within, and more --repeats narrow it")


def test_what_is_no_better_is_not_confirmed(sample):
    trials = repeats(sample, [520.0, 525.0, 515.0], [400.0, 404.0, 396.0])
    found = judge_confirmation(trials, 2, maximise=True)
    assert found is not None
    text = confirmation_text(found)
    assert text.startswith("not confirmed: -23 %")


def test_every_run_is_listed(sample, confirmed, console, printed):
    found = judge_confirmation(confirmed, 2, maximise=True)
    print_confirmation(console, sample.study, confirmed, confirmed[2], found)
    text = printed(console)
    assert all(f"#{confirmation_number(2, run)}" in text for run in range(6))
    assert text.count("winner #2") == text.count("baseline #0") == 3
    assert "winner: P99 E2E within its limit in 3 of 3 runs" in " ".join(text.split())


def test_a_winner_that_is_the_baseline_says_that_nothing_was_run(sample, console, printed):
    print_confirmation(console, sample.study, sample.trials, sample.trials[0], None)
    assert "there is nothing to confirm, and nothing was run" in " ".join(printed(console).split())
    shown = confirmation_view(sample.study, sample.trials, sample.trials[0], None)
    assert (shown.outcome, shown.runs, shown.winner) == (None, {}, 0)


def test_scripts_get_the_same(sample, confirmed):
    found = judge_confirmation(confirmed, 2, maximise=True)
    shown = confirmation_view(sample.study, confirmed, confirmed[2], found)
    assert (shown.outcome, shown.reason, shown.runs) == ("confirmed", "better", {"winner": 3, "baseline": 3})
    assert shown.ratio.low < 1.3 < shown.ratio.high
    assert shown.trials == [confirmation_number(2, run) for run in range(6)]
    assert shown.limits["winner"]["p99_e2e_ms"].held == 3


def test_the_closing_words_of_a_run_say_it(sample, confirmed, console, make_closing, printed):
    print_closing(console, make_closing(sample.study, confirmed))
    text = " ".join(printed(console).split())
    assert "On held-out traffic (runs: 3 of the baseline, 3 of the winner) it is confirmed: +30 % (95 %" in text
    assert "not yet confirmed" not in text
    assert "5 of 24 trials" not in text
    assert "6 of 24 trials" in text, "runs of a confirmation are no trials of the study"
    assert "feasible, 2 infeasible" in text


def test_an_unfinished_one_counts_its_runs_once(sample, confirmed, console, make_closing, printed):
    print_closing(console, make_closing(sample.study, confirmed[:-1]))
    text = " ".join(printed(console).split())
    assert "On held-out traffic it is undecided: too few runs are measured (3 of the baseline, 2 of the winner)" in text


def test_without_one_they_give_the_command(sample, console, make_closing, printed):
    print_closing(console, make_closing(sample.study, sample.trials))
    assert "vllm-autotune confirm --study tiny-cpu" in printed(console)


def test_a_listing_counts_the_study_and_tells_the_confirmation(sample, confirmed, console, printed):
    print_studies(console, [(sample.study, confirmed)])
    assert "14" not in printed(console)
    print_study(console, sample.study, confirmed)
    text = printed(console)
    assert "confirm" in text
    assert "#2 confirmed: +30 %" in text
    assert "* best: #2" in text
