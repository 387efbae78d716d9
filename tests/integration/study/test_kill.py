"""`kill -9` at any instant: no engine outlives its optimizer, and the study loses nothing and counts nothing twice."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import pytest

from tests.drill import RUN, SPEED, TRIALS, History, Recorded, assert_exact, blind_params, write_space
from tests.driving import GONE_WITHIN_S, Driver, Finished

# The fixture below goes through all of it for whichever test comes first.
pytestmark = pytest.mark.timeout(400)

INSTANTS = {
    "before the first trial": "5 trials to run",
    "launching": "trial #0: launching",
    "loading": "trial #0: launching",
    "warming up": "trial #0: warming up",
    "measuring": "trial #1: measuring",
    "stopping": "trial #2: stopping",
    "between trials": "#3  feasible",
    "the last trial": "trial #4: measuring",
}
"""What the run says just before it is killed. The study goes on from one to the next."""


@dataclass
class Killed:
    """A study that was killed at every instant, and then ran to its end."""

    gone_s: dict[str, float]
    engines: dict[str, int]
    trials_after: dict[str, list[Recorded]]
    status: object
    ended: Finished


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kill")
    write_space(folder)
    driver = Driver(folder, SPEED)
    gone_s, engines, trials_after, status = {}, {}, {}, None
    try:
        for instant, words in INSTANTS.items():
            run = driver.start(*RUN)
            run.wait_for(words)
            if instant == "loading":
                driver.wait_until(lambda: bool(driver.engines()), "there is no engine")
            engines[instant] = len(driver.engines())
            run.process.kill()
            gone_s[instant] = driver.wait_until_all_gone()
            assert run.finish().exit_code == -9
            trials_after[instant] = History.of(folder).trials()
            if instant == "measuring":
                status = driver.json("status", "--study", "drill", "--json")
        ended = driver.run(*RUN)
        trials_after["the end"] = History.of(folder).trials()
        yield Killed(gone_s, engines, trials_after, status, ended)
    finally:
        driver.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("instant", INSTANTS)
def test_no_process_outlives_the_optimizer(killed, instant):
    assert killed.gone_s[instant] < GONE_WITHIN_S


@pytest.mark.parametrize("instant", ["loading", "warming up", "measuring", "the last trial"])
def test_there_was_an_engine_to_end(killed, instant):
    assert killed.engines[instant] > 0


@pytest.mark.parametrize("instant", INSTANTS)
def test_no_trial_is_lost_or_counted_twice(killed, instant):
    trials = killed.trials_after[instant]
    assert [trial.number for trial in trials] == list(range(len(trials)))
    finals = [trial for trial in trials if trial.state == "feasible"]
    assert finals == killed.trials_after["the end"][: len(finals)], "what is over never changes"


def test_status_does_not_call_a_trial_running_whose_optimizer_is_gone(killed):
    assert [trial["state"] for trial in killed.status["trials"]] == ["feasible", "interrupted"]


def test_the_resumed_study_ends_with_exact_history(killed, unbroken):
    assert killed.ended.exit_code == 0, killed.ended.said
    trials = killed.trials_after["the end"]
    assert_exact(trials, TRIALS)
    assert [trial.state for trial in trials] == ["feasible"] * TRIALS
    assert all(len(trials[number].attempts) > 1 for number in (0, 1, 2, 4))
    assert blind_params(trials) == blind_params(History.of(unbroken.folder).trials())
