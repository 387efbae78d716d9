"""Studies whose trials an external evaluator measures, through the command line: no engine, no GPU, no model here."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.drill import STUDY, History, assert_exact, write_space
from tests.driving import Driver, Finished
from tests.integration.study.side_by_side import Drill, driver_of_its_own, run_at_once, two_at_a_time

SCRIPT = Path(__file__).with_name("scripted.py")
EVALUATOR = f"{sys.executable} scripted.py"
RUN = ("run", "--space", "space.yaml", "--evaluator", EVALUATOR)
TRIALS = 4

pytestmark = pytest.mark.timeout(300)

MEASURED_ELSEWHERE = {"baseline": "vllm serve --max-num-seqs 8", "slos": ["p50_e2e<=20x"]}


class Bench:
    """A folder with a space for a GPU that is not here, a model that is not here, and the scripted evaluator."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.folder = driver, driver.folder
        folder = driver.folder
        shutil.copy(SCRIPT, folder)
        write_space(folder, {"model": "org/model", "trials": TRIALS, "engine": {}} | MEASURED_ELSEWHERE)
        self.ran: Finished | None = None

    def behave(self, **trials: dict[str, Any]) -> None:
        """What the evaluator does in trial `_0`, `_1`, …; in all others it measures."""
        text = json.dumps({name.removeprefix("_"): todo for name, todo in trials.items()})
        (self.folder / "behave.json").write_text(text)

    def run(self, *more: str) -> Finished:
        return self.driver.run(*RUN, *more)

    def calls(self) -> list[dict[str, Any]]:
        """What it was asked, call by call."""
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]

    def states(self) -> list[str]:
        return [trial.state for trial in History.of(self.folder).trials()]

    def shown(self, number: int) -> Any:
        return self.driver.json("show", str(number), "--json")

    def until_it_hangs(self) -> None:
        self.driver.wait_until((self.folder / "hangs").is_file, "the evaluator was not started", limit_s=60)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A study that ran to its end, one trial of which failed by its setting's fault; to be read."""
    made = Bench(driver_of_its_own(tmp_path_factory.mktemp("evaluated")))
    try:
        failed = {"status": "failed", "kind": "out_of_memory", "blame": "config", "detail": "killed", "violation": 0.4}
        made.behave(
            _0={"stderr": {"p50_e2e_ms": 1.0}},
            _2={"say": json.dumps(failed)},
            _3={"metrics": {"p50_e2e_ms": 10_000.0}, "stderr": {"p50_e2e_ms": 3000.0, "output_tokens_per_s": 4.0}},
        )
        made.ran = made.run()
        yield made
    finally:
        made.driver.close()


def test_a_whole_study_is_as_ever(finished):
    assert finished.ran is not None
    assert finished.ran.exit_code == 0, finished.ran.said
    assert_exact(History.of(finished.folder).trials(), TRIALS)
    assert finished.states() == ["feasible", "feasible", "failed", "undecided"]
    assert [call["trial"] for call in finished.calls()] == [0, 1, 2, 3]
    assert {call["seed"] for call in finished.calls()} == {0}
    assert len({call["content_seed"] for call in finished.calls()}) == TRIALS
    assert finished.calls()[0]["flags"] == {"max-num-seqs": 8}
    assert finished.calls()[0]["role"] == "baseline"
    assert finished.calls()[0]["wanted"] == ["output_tokens_per_s", "p50_e2e_ms"]
    assert finished.driver.left() == []


@pytest.fixture(scope="module")
def read(finished: Bench) -> dict[str, Finished]:
    """What the reading commands say of it."""
    commands = {
        "status": ("status", "--study", STUDY, "--json"),
        "#3": ("show", "3", "--json"),
        "#2": ("show", "2", "--json"),
        "#2 in words": ("show", "2"),
        "flags": ("export", "--trial", "0"),
        "command": ("export", "--trial", "0", "--format", "command"),
    }
    return dict(zip(commands, run_at_once(finished.driver, *commands.values()), strict=True))


def test_the_reading_commands_tell_it(read):
    status = json.loads(read["status"].out)
    measured = {name: value for name, value in status["trials"][0]["metrics"].items() if value is not None}
    assert measured == {"output_tokens_per_s": 108.0, "p50_e2e_ms": 508.0}
    undecided = json.loads(read["#3"].out)
    limit = undecided["score"]["limits"][0]
    assert limit["verdict"] == "undecided"
    assert limit["low"] < limit["observed"] == 10_000.0 < limit["high"]
    assert undecided["score"]["low"] < undecided["value"] < undecided["score"]["high"]
    failure = json.loads(read["#2"].out)["failure"]
    assert (failure["kind"], failure["blame"], failure["violation"]) == ("out_of_memory", "config", 0.4)
    assert "killed" in read["#2 in words"].out
    assert read["flags"].out.strip() == "--max-num-seqs 8"
    command = read["command"].out
    assert "scripted.py" not in command
    assert "--model org/model" in command


def test_what_it_was_asked_and_said_is_kept(finished, read):
    folder = Path(json.loads(read["#2"].out)["attempts"][0]["folder"])
    assert json.loads((folder / "evaluator_request.json").read_text()) == finished.calls()[2]
    assert "out_of_memory" in (folder / "evaluator_stdout.log").read_text()
    assert (folder / "evaluator_stderr.log").is_file()


def test_the_same_command_goes_on_and_another_evaluator_is_another_study(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    driver = Driver(folder)
    try:
        again = driver.run(*RUN)
        changed = driver.run("run", "--space", "space.yaml", "--evaluator", f"{EVALUATOR} --other")
    finally:
        driver.close()
    assert again.exit_code == 0, again.said
    assert changed.exit_code == 2
    assert "evaluator:" in changed.err
    assert "--other" in changed.err


def test_a_larger_total_goes_on_and_its_winner_is_confirmed(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    driver = Driver(folder)
    try:
        assert driver.run(*RUN, "--trials", "5").exit_code == 0
        assert len(History.of(folder).trials()) == 5
        confirmed = driver.run("confirm")
        assert "held-out" in confirmed.said
    finally:
        driver.close()
    calls = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
    held_out = [call for call in calls if call["role"] == "confirm"]
    assert {call["seed"] for call in held_out} - {0} == {call["seed"] for call in held_out}


def killed_in_the_middle_of_a_trial_it_leaves_nothing_and_goes_on(driver: Driver) -> None:
    bench = Bench(driver)
    bench.behave(_2={"hang": "deaf"})
    run = bench.driver.start(*RUN)
    bench.until_it_hangs()
    assert bench.driver.engines() != []
    run.send(signal.SIGKILL)
    bench.driver.wait_until_all_gone()
    bench.behave()
    resumed = bench.run()
    assert resumed.exit_code == 0, resumed.said
    trials = History.of(bench.folder).trials()
    assert_exact(trials, TRIALS)
    assert [trial.attempts for trial in trials] == [[1], [1], [1, 2], [1]]
    asked = [call for call in bench.calls() if call["trial"] == 2]
    assert asked[0]["params"] == asked[1]["params"]
    assert [call["attempt"] for call in asked] == [1, 2]


def ctrl_c_ends_it_with_its_processes(driver: Driver) -> None:
    bench = Bench(driver)
    bench.behave(_1={"hang": "deaf"})
    run = bench.driver.start(*RUN)
    bench.until_it_hangs()
    run.send_to_group(signal.SIGINT)
    ended = run.finish()
    assert ended.exit_code == 130, ended.said
    assert "go on with" in ended.err
    assert bench.driver.left() == []
    assert bench.states() == ["feasible", "interrupted"]


def one_that_hangs_is_a_failure_of_the_setting_and_the_study_goes_on(driver: Driver) -> None:
    bench = Bench(driver)
    bench.behave(_2={"hang": "until told to end"})
    ran = bench.run("--evaluator-timeout", "5s")
    assert ran.exit_code == 0, ran.said
    assert bench.states() == ["feasible", "feasible", "failed", "feasible"]
    trial = bench.shown(2)
    assert (trial["failure"]["kind"], trial["failure"]["blame"]) == ("load_timeout", "config")
    assert trial["failure"]["evidence"] == ["hanging"]
    assert len(trial["attempts"]) == 2


def one_that_dies_three_times_stops_the_run_and_the_same_command_goes_on(driver: Driver) -> None:
    words = three_times_stop_the_run_and_the_same_command_goes_on(driver, {"exit": 3})
    assert "the evaluator died: exit status 3" in words
    assert "RuntimeError: no such pod" in words


def one_that_talks_nonsense_three_times_stops_the_run_and_the_same_command_goes_on(driver: Driver) -> None:
    nonsense = {"metrics": {"output_tokens_per_s": float("nan")}}
    assert "metrics.output_tokens_per_s" in three_times_stop_the_run_and_the_same_command_goes_on(driver, nonsense)


def three_times_stop_the_run_and_the_same_command_goes_on(driver: Driver, todo: dict[str, Any]) -> str:
    """What the run that was stopped said."""
    bench = Bench(driver)
    bench.behave(_1=todo)
    ran = bench.run()
    assert ran.exit_code == 4, ran.said
    assert "3 times in a row" in ran.err
    assert bench.states() == ["feasible", "interrupted"]
    bench.behave()
    assert bench.run().exit_code == 0
    assert bench.states() == ["feasible"] * TRIALS
    return ran.err.replace("\n", " ")


DRILLS = (
    killed_in_the_middle_of_a_trial_it_leaves_nothing_and_goes_on,
    ctrl_c_ends_it_with_its_processes,
    one_that_hangs_is_a_failure_of_the_setting_and_the_study_goes_on,
    one_that_dies_three_times_stops_the_run_and_the_same_command_goes_on,
    one_that_talks_nonsense_three_times_stops_the_run_and_the_same_command_goes_on,
)


@pytest.fixture(scope="module")
def drills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Drill, Future[None]]]:
    folders = [tmp_path_factory.mktemp("drill") for _ in DRILLS]
    with two_at_a_time(dict(zip(DRILLS, map(driver_of_its_own, folders), strict=True))) as begun:
        yield begun


@pytest.mark.parametrize("drill", DRILLS)
def test_whatever_the_evaluator_does(drills, drill):
    drills[drill].result()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--evaluator", "./scripted.py"), "cannot be executed"),
        (("--evaluator", "true", "--evaluator-timeout", "0s"), "--evaluator-timeout"),
    ],
)
def test_bad_options_are_refused_before_anything_is_recorded(driver, words, message):
    bench = Bench(driver)
    (bench.folder / "scripted.py").chmod(0o600)
    ran = bench.driver.run("run", "--space", "space.yaml", *words)
    assert ran.exit_code == 2, ran.said
    assert message in ran.err.replace("\n", " ")
    assert not (bench.folder / "autotune").exists()
