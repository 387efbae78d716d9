"""`--time-budget`: no trial is started that would not end in time."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.drill import RUN, STUDY, TRIALS, History, assert_exact

pytestmark = pytest.mark.timeout(200)

MARGIN = 1.15
"""How much longer than the longest trial so far the next one is allowed for."""


def seconds(span: tuple[datetime, datetime]) -> float:
    return (span[1] - span[0]).total_seconds()


def test_a_run_ends_before_the_trial_that_would_not_fit(driver_on_copy):
    history = History.of(driver_on_copy.folder)
    budget_s = 3.0 * MARGIN * max(map(seconds, history.spans()))
    words = (*RUN, "--trials", "60", "--time-budget", f"{budget_s:.1f}s")
    ran = driver_on_copy.run(*words)
    assert ran.exit_code == 0, ran.said
    assert "The time budget is used up. Go on with:" in ran.out
    assert f"  python -m optimizer {' '.join(words)}\n" in ran.out
    trials = history.spans()
    assert TRIALS < len(trials) < 60
    assert_exact(history.trials(), len(trials))
    for number in range(TRIALS, len(trials)):
        # Decided after the end of the trial before; how long its own start then takes is the machine's affair.
        decided_at = trials[number - 1][1] if number > TRIALS else trials[TRIALS][0]
        spent_s = (decided_at - trials[TRIALS][0]).total_seconds()
        expected_s = MARGIN * max(map(seconds, trials[:number]))
        assert spent_s + expected_s <= budget_s + 0.05, f"trial {number} was started too late"


def a_budget_too_small_for_one_trial_starts_none(driver):
    ran = driver.run(*RUN, "--time-budget", "5s")
    assert ran.exit_code == 3, ran.said
    assert "the time budget is used up" in ran.err
    assert f"study {STUDY}: 0 of {TRIALS} trials" in ran.out
    assert "Go on with:" in ran.out
    assert History.of(driver.folder).trials() == []


def a_budget_that_ends_with_nothing_feasible_ends_with_3_and_says_how_to_go_on(driver):
    limited = (*RUN, "--slo", "p99_e2e_ms=1")
    assert driver.run(*limited, "--trials", "2").exit_code == 3
    words = (*limited, "--trials", "60", "--time-budget", "0.1s")
    ran = driver.run(*words)
    assert ran.exit_code == 3, ran.said
    assert f"no trial of study {STUDY} meets its limits so far, and the time budget is used up" in ran.err
    assert f"go on with: python -m optimizer {' '.join(words)}" in " ".join(ran.err.split())
    assert "Nearest: #" in ran.out
    assert [trial.state for trial in History.of(driver.folder).trials()] == ["infeasible"] * 2


DRILLS = (
    a_budget_that_ends_with_nothing_feasible_ends_with_3_and_says_how_to_go_on,
    a_budget_too_small_for_one_trial_starts_none,
)


@pytest.mark.parametrize("drill", DRILLS)
def test_a_budget_that_is_used_up(begun, drill):
    begun[drill].result()
