"""Ctrl-C and its kin: the run ends at once, nothing of it is left, and the same command goes on."""

from __future__ import annotations

import functools
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.drill import RUN, History, Recorded, assert_exact, blind_params, stuck, write_space
from tests.driving import LIMIT_S, Driver, Finished
from tests.integration.study.side_by_side import driver_of_its_own, side_by_side

# The fixture below goes through all of it for whichever test comes first.
pytestmark = pytest.mark.timeout(400)

TRIALS = 3
COMMAND = f"python -m optimizer {' '.join(RUN)}"
WAYS = {
    "SIGTERM while launching": ("alone", 0),
    "SIGINT to the process alone": ("alone", 1),
    "SIGHUP to the group": ("group", 0),
    "Ctrl-C": ("group", 1),
}
"""How a run is stopped, to the study that it belongs to and the trial that it meets."""


@dataclass
class Told:
    """What a study went through, for the tests to look at."""

    stopped: dict[str, Finished] = field(default_factory=dict)
    gone_s: dict[str, float] = field(default_factory=dict)
    trials_after: dict[str, list[Recorded]] = field(default_factory=dict)
    second: Finished | None = None
    holder_pid: int = 0
    on_terminal: str = ""
    ended: Finished | None = None


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Two studies by name, each stopped once in every trial but the last, each time in another way."""
    make = tmp_path_factory.mktemp
    alone, group = side_by_side(
        functools.partial(_study, make("alone"), _stop_while_launching, _stop_the_process_alone),
        functools.partial(_study, make("group"), _stop_the_group, _stop_on_terminal),
    )
    return {"alone": alone, "group": group}


def _study(folder: Path, *stops: Callable[[Driver, Told], None]) -> Told:
    write_space(folder, {"trials": TRIALS})
    driver, told = driver_of_its_own(folder), Told()
    try:
        for stop in stops:
            stop(driver, told)
        told.ended = driver.run(*RUN)
        told.trials_after["the end"] = History.of(folder).trials()
    finally:
        driver.close()
        shutil.rmtree(folder)
    return told


def _stop_while_launching(driver: Driver, told: Told) -> None:
    """SIGTERM to a run whose engine never gets ready; meanwhile another run of the study is tried."""
    first = driver.start(*RUN, **stuck(driver.folder, "launching"))
    first.wait_for("trial #0: launching")
    driver.wait_until(lambda: bool(driver.engines()), "there is no engine", limit_s=LIMIT_S)
    told.second, told.holder_pid = driver.run(*RUN), first.process.pid
    first.send(signal.SIGTERM)
    _note(driver, told, "SIGTERM while launching", first)


def _stop_the_process_alone(driver: Driver, told: Told) -> None:
    run = driver.start(*RUN, **stuck(driver.folder, "measuring", launch=2))
    run.wait_for("trial #1: measuring")
    run.send(signal.SIGINT)
    _note(driver, told, "SIGINT to the process alone", run)


def _stop_the_group(driver: Driver, told: Told) -> None:
    run = driver.start(*RUN, **stuck(driver.folder, "measuring"))
    run.wait_for("trial #0: measuring")
    run.send_to_group(signal.SIGHUP)
    _note(driver, told, "SIGHUP to the group", run)


def _stop_on_terminal(driver: Driver, told: Told) -> None:
    """Ctrl-C on a terminal, in the middle of a load."""
    run = driver.start_on_terminal(*RUN, columns=80, **stuck(driver.folder, "measuring", launch=2))
    run.wait_for("#0  feasible")
    run.wait_for("trial #1 (default)")
    # No request of the window ends, so that it lasts as long as it may.
    run.wait_for("of 4.0 s measured")
    run.type("\x03")
    _note(driver, told, "Ctrl-C", run)
    told.on_terminal = run.heard


def _note(driver: Driver, told: Told, name: str, run) -> None:
    told.gone_s[name] = driver.wait_until_all_gone()
    told.stopped[name] = run.finish()
    told.trials_after[name] = History.of(driver.folder).trials()


@pytest.mark.parametrize(("way", "name"), [(way, name) for way, (name, _) in WAYS.items()])
def test_the_run_ends_with_130_and_says_how_to_go_on(studies, way, name):
    stopped = studies[name].stopped[way]
    assert stopped.exit_code == 130, stopped.said
    said = " ".join(stopped.said.split())
    assert "the record is complete and no engine is left" in said
    assert f"go on with: {COMMAND}" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(("way", "name"), [(way, name) for way, (name, _) in WAYS.items()])
def test_no_process_is_left(studies, way, name):
    assert studies[name].gone_s[way] < 10.0


@pytest.mark.parametrize(("way", "name", "number"), [(way, *met) for way, met in WAYS.items()])
def test_the_interrupted_trial_waits_under_its_number(studies, way, name, number):
    trials = studies[name].trials_after[way]
    assert [trial.number for trial in trials] == list(range(number + 1))
    assert (trials[number].state, trials[number].attempts, trials[number].told) == ("interrupted", [1], "RUNNING")


@pytest.mark.parametrize("name", ["alone", "group"])
def test_the_study_ends_with_exactly_its_trials(studies, unbroken, name):
    told = studies[name]
    assert told.ended is not None
    assert told.ended.exit_code == 0, told.ended.said
    trials = told.trials_after["the end"]
    assert_exact(trials, TRIALS)
    assert [len(trial.attempts) for trial in trials] == [2, 2, 1]
    assert blind_params(trials) == blind_params(History.of(unbroken.folder).trials())[:TRIALS]


def test_a_study_is_run_by_one_process_at_a_time(studies):
    told = studies["alone"]
    assert told.second is not None
    assert told.second.exit_code == 4, told.second.said
    assert f"study drill is being run by another process (pid {told.holder_pid})" in told.second.err


def test_a_terminal_shows_a_live_view(studies):
    on_terminal = studies["group"].on_terminal
    assert "\x1b[" in on_terminal
    for words in ("trial #1 (default), 2 of 3", "best so far: #0", "trials left, about", "measuring for"):
        assert words in on_terminal, words
