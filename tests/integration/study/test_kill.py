"""`kill -9` at any instant: no engine outlives its optimizer, and the study loses nothing and counts nothing twice."""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.drill import RUN, History, Recorded, assert_exact, blind_params, stuck, write_space
from tests.driving import GONE_WITHIN_S, LIMIT_S, Finished
from tests.integration.study.side_by_side import driver_of_its_own, side_by_side

# The fixture below goes through all of it for whichever test comes first.
pytestmark = pytest.mark.timeout(400)

EARLY = {
    "before the first trial": ("2 trials to run", 0, "launching"),
    "launching": ("trial #0: launching", 0, "launching"),
    "loading": ("trial #0: launching", 0, "launching"),
    "warming up": ("trial #0: warming up", 0, "warming up"),
}
LATE = {
    "measuring": ("trial #1: measuring", 1, "measuring"),
    "stopping": ("trial #1: stopping", 2, "launching"),
    "between trials": ("#2  feasible", 3, "launching"),
    "the last trial": ("trial #3: measuring", 3, "measuring"),
}
"""What a run says just before it is killed, and the trial and stage that it gets no further than: there a kill meets it
that comes late on a busy machine. The study goes on from one to the next."""
INSTANTS = {**dict.fromkeys(EARLY, "early"), **dict.fromkeys(LATE, "late")}
"""Instant to the study that was killed then."""
TRIALS = {"early": 2, "late": 4}
TRIED_AGAIN = {"early": [0], "late": [1, 3]}


@dataclass
class Killed:
    """A study that was killed at some instants, and then ran to its end."""

    ended: Finished | None = None
    status: Any = None
    gone_s: dict[str, float] = field(default_factory=dict)
    engines: dict[str, int] = field(default_factory=dict)
    trials_after: dict[str, list[Recorded]] = field(default_factory=dict)


def kill_at(instants, trials, folder) -> Killed:
    write_space(folder, {"trials": trials})
    driver, killed, finished = driver_of_its_own(folder), Killed(), 0
    try:
        for instant, (words, trial, stage) in instants.items():
            launch = 1 + trial - finished
            run = driver.start(*RUN, **stuck(folder, stage, launch=launch))
            run.wait_for(words)
            if instant == "loading":
                driver.wait_until(lambda: bool(driver.engines()), "there is no engine", limit_s=LIMIT_S)
            killed.engines[instant] = len(driver.engines())
            run.process.kill()
            killed.gone_s[instant] = driver.wait_until_all_gone()
            assert run.finish().exit_code == -9
            killed.trials_after[instant] = History.of(folder).trials()
            finished = sum(trial.state == "feasible" for trial in killed.trials_after[instant])
            if instant == "measuring":
                killed.status = driver.json("status", "--study", "drill", "--json")
        killed.ended = driver.run(*RUN)
        killed.trials_after["the end"] = History.of(folder).trials()
    finally:
        driver.close()
        shutil.rmtree(folder)
    return killed


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Both studies by name."""
    make = tmp_path_factory.mktemp
    early, late = side_by_side(
        functools.partial(kill_at, EARLY, TRIALS["early"], make("early")),
        functools.partial(kill_at, LATE, TRIALS["late"], make("late")),
    )
    return {"early": early, "late": late}


@pytest.mark.parametrize("instant", INSTANTS)
def test_no_process_outlives_the_optimizer(studies, instant):
    assert studies[INSTANTS[instant]].gone_s[instant] < GONE_WITHIN_S


@pytest.mark.parametrize("instant", ["loading", "warming up", "measuring", "the last trial"])
def test_there_was_an_engine_to_end(studies, instant):
    assert studies[INSTANTS[instant]].engines[instant] > 0


@pytest.mark.parametrize("instant", INSTANTS)
def test_no_trial_is_lost_or_counted_twice(studies, instant):
    trials_after = studies[INSTANTS[instant]].trials_after
    trials = trials_after[instant]
    assert [trial.number for trial in trials] == list(range(len(trials)))
    finals = [trial for trial in trials if trial.state == "feasible"]
    assert finals == trials_after["the end"][: len(finals)], "what is over never changes"


def test_status_does_not_call_a_trial_running_whose_optimizer_is_gone(studies):
    assert [trial["state"] for trial in studies["late"].status["trials"]] == ["feasible", "interrupted"]


@pytest.mark.parametrize("name", TRIALS)
def test_the_resumed_study_ends_with_exact_history(studies, unbroken, name):
    assert studies[name].ended.exit_code == 0, studies[name].ended.said
    trials = studies[name].trials_after["the end"]
    assert_exact(trials, TRIALS[name])
    assert [trial.state for trial in trials] == ["feasible"] * TRIALS[name]
    assert all(len(trials[number].attempts) > 1 for number in TRIED_AGAIN[name])
    assert blind_params(trials) == blind_params(History.of(unbroken.folder).trials())[: TRIALS[name]]
