"""A winner is confirmed through the command line: killed in the middle, resumed, and no part of the search."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.drill import RUN, SPEED, History, Recorded, stuck, write_space
from tests.driving import Driver, Finished
from tests.integration.study.side_by_side import run_at_once

# The fixture below goes through all of it for whichever test comes first.
pytestmark = pytest.mark.timeout(400)

TRIALS = 2
SLOW_BASELINE = {
    "baseline": "vllm serve tiny-kv --max-num-seqs 1",
    "trials": TRIALS,
}
SPEED_OF_THE_ENGINE = {"AUTOTUNE_SIM_SPEED": "4"}
"""Slow enough that the engine's own times, and not those of this machine, tell the two settings apart."""
RUNS = list(range(1_000_000, 1_000_000 + 6))


@dataclass
class Confirmed:
    """What a study went through, for the tests to look at."""

    ran: Finished
    winner: int = 0
    gone_s: float = 0.0
    after_kill: list[Recorded] = field(default_factory=list)
    status_after_kill: Any = None
    ended: Finished | None = None
    after: list[Recorded] = field(default_factory=list)
    shown: Any = None
    again: Finished | None = None
    study_goes_on: Finished | None = None
    status: Any = None

    @property
    def numbers(self) -> list[int]:
        return [number + 100 * self.winner for number in RUNS]

    def confirming(self, trials: list[Recorded]) -> list[Recorded]:
        return [trial for trial in trials if trial.number >= RUNS[0]]


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("confirm")
    write_space(folder, SLOW_BASELINE)
    driver = Driver(folder, SPEED | SPEED_OF_THE_ENGINE)
    try:
        told = Confirmed(driver.run(*RUN))
        assert told.ran.exit_code == 0, told.ran.said
        told.winner = driver.json("status", "--study", "drill", "--json")["recommended"]["trial"]
        run = driver.start("confirm", "--study", "drill", **stuck(folder, "measuring", launch=2))
        run.wait_for("run 2 of 6: measuring")
        run.process.kill()
        told.gone_s = driver.wait_until_all_gone()
        run.finish()
        told.after_kill = History.of(folder).trials()
        told.status_after_kill = driver.json("status", "--study", "drill", "--json")
        told.ended = driver.run("confirm")
        told.after = History.of(folder).trials()
        told.again = driver.run("confirm", "--json")
        told.study_goes_on = driver.run(*RUN)
        show = ("show", str(told.numbers[1]), "--json")
        shown, told.status = run_at_once(driver, show, ("status", "--study", "drill"))
        assert shown.exit_code == 0, shown.said
        told.shown = json.loads(shown.out)
        yield told
    finally:
        driver.close()
        shutil.rmtree(folder)


def test_the_winner_is_not_the_baseline_and_run_says_how_to_confirm_it(confirmed):
    assert confirmed.winner == 1
    assert "not yet confirmed on held-out traffic" in " ".join(confirmed.ran.out.split())
    assert "python -m optimizer confirm --study drill" in confirmed.ran.out


def test_a_killed_confirmation_leaves_no_engine_and_keeps_what_it_had(confirmed):
    assert confirmed.gone_s < 10.0
    runs = confirmed.confirming(confirmed.after_kill)
    assert [run.number for run in runs] == confirmed.numbers[:2]
    assert runs[0].state == "feasible"
    states = {trial["number"]: trial["state"] for trial in confirmed.status_after_kill["trials"]}
    assert states[confirmed.numbers[1]] == "interrupted"


def test_the_same_command_goes_on(confirmed):
    assert confirmed.ended.exit_code in (0, 3), confirmed.ended.said
    runs = confirmed.confirming(confirmed.after)
    assert [run.number for run in runs] == confirmed.numbers
    assert [len(run.attempts) for run in runs] == [1, 2, 1, 1, 1, 1]
    assert {run.state for run in runs} == {"feasible"}
    assert runs[0] == confirmed.confirming(confirmed.after_kill)[0], "what is recorded never changes"


def test_the_outcome_is_told_in_one_line(confirmed):
    outcomes = {0: ("confirmed: ",), 3: ("undecided: ", "not confirmed: ")}[confirmed.ended.exit_code]
    lines = [line for line in confirmed.ended.out.splitlines() if line.startswith(outcomes)]
    assert len(lines) == 1
    assert "95 % interval" in lines[0]


def test_once_complete_nothing_is_run_again(confirmed):
    assert confirmed.again.exit_code == confirmed.ended.exit_code
    assert "measuring" not in confirmed.again.err


def test_a_run_can_be_shown(confirmed):
    assert confirmed.shown["role"] == "confirm"
    assert confirmed.shown["notes"][0] == f"repeats trial {confirmed.winner} (winner) on held-out traffic"


def test_the_search_never_hears_of_it(confirmed):
    assert all(run.told is None for run in confirmed.confirming(confirmed.after))
    assert [trial.number for trial in confirmed.after if trial.told is not None] == list(range(TRIALS))


def test_the_study_is_what_it_was(confirmed):
    assert confirmed.study_goes_on.exit_code == 0
    said = " ".join(confirmed.study_goes_on.out.split())
    assert f"study drill: {TRIALS} of {TRIALS} trials" in said
    assert "On held-out traffic (runs: 3 of the baseline, 3 of the winner) it is " in said
    assert f"recommended: #{confirmed.winner}: " in confirmed.status.out
    assert f"#{confirmed.winner} " in confirmed.status.out.splitlines()[-1]


def test_a_best_baseline_needs_no_confirmation(driver_on_copy):
    history = History.of(driver_on_copy.folder)
    for number in range(1, 5):
        history.declare(number, "infeasible")
    history.declare(0, "feasible")
    done = driver_on_copy.run("confirm")
    assert done.exit_code == 0, done.said
    assert "there is nothing to confirm, and nothing was run" in " ".join(done.out.split())


def test_another_protocol_is_refused(driver_on_copy):
    history = History.of(driver_on_copy.folder)
    for number in (0, 2, 3, 4):
        history.declare(number, "infeasible")
    history.declare(1, "feasible")
    history.change("UPDATE autotune_studies SET identity = replace(identity, 'measurement_protocol', 'old_protocol')")
    done = driver_on_copy.run("confirm")
    assert done.exit_code == 2, done.said
    assert "was begun with another configuration" in done.err
    assert "old_protocol: " in done.err
    assert not driver_on_copy.left()
