"""A study from its first command to its export, and what comes after."""

from __future__ import annotations

import csv
import functools
import gzip
import json
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from optimizer.core.samplers import DEFAULT_SAMPLER
from tests.drill import RUN, STUDY, TRIALS, History, Recorded, assert_exact, write_space
from tests.driving import Driver, Finished
from tests.integration.study.side_by_side import FinishedStudy, driver_of_its_own, run_at_once, side_by_side

pytestmark = pytest.mark.timeout(200)

METRICS = ("output_tokens_per_s", "p99_e2e_ms", "p99_ttft_ms", "p99_tpot_ms", "p99_itl_ms", "preemptions")
TRIAL_KEYS = {"number", "role", "state", "params", "value", "verdict", "metrics", "failure"}


@pytest.fixture(scope="module")
def reader(unbroken):
    """Runs commands that only read, in the finished study's own folder."""
    driver = Driver(unbroken.folder)
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def listed(reader):
    return reader.json("status", "--study", STUDY, "--json")


def test_it_ends_with_0_and_a_report_on_stdout(unbroken):
    assert unbroken.ran.exit_code == 0, unbroken.ran.said
    out = unbroken.ran.out
    assert f"study {STUDY}: {TRIALS} of {TRIALS} trials" in out
    assert f"export     python -m optimizer export --format command --study {STUDY}" in out
    assert f"record     sqlite:///{unbroken.folder}/autotune/studies.db" in out


def test_progress_in_a_pipe_is_one_plain_line_an_event(unbroken):
    lines = unbroken.ran.err.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d \S", line) for line in lines), unbroken.ran.err
    assert "\x1b" not in unbroken.ran.said
    for words in (f"study {STUDY}: {TRIALS} trials to run", "trial #0 (baseline), 1 of 5", "trial #4: measuring"):
        assert any(words in line for line in lines), words
    assert re.search(r"best so far: #\d .*; 4 trials left, about ", unbroken.ran.err)


def test_record_and_search_agree(unbroken):
    trials = History.of(unbroken.folder).trials()
    assert_exact(trials, TRIALS)
    assert [trial.attempts for trial in trials] == [[1]] * TRIALS


def test_status_lists_the_study(reader, listed):
    assert reader.json("status", "--json") == {"studies": [{"study": STUDY, "trials": TRIALS, "best": listed["best"]}]}


def test_status_of_the_study_has_the_shape_that_scripts_rely_on(listed):
    assert set(listed) == {"study", "best", "recommended", "nothing_feasible", "trials"}
    states = {trial["number"]: trial["state"] for trial in listed["trials"]}
    assert states[listed["recommended"]["trial"]] == "feasible"
    assert 0.0 < listed["recommended"]["probability"] <= 1.0
    assert listed["nothing_feasible"] is None
    assert listed["study"] == STUDY
    assert [trial["number"] for trial in listed["trials"]] == list(range(TRIALS))
    assert [trial["role"] for trial in listed["trials"]] == ["baseline", "default", "search", "search", "search"]
    for trial in listed["trials"]:
        assert set(trial) == TRIAL_KEYS
        assert (trial["state"], trial["verdict"], trial["failure"]) == ("feasible", "feasible", None)
        assert set(METRICS) <= set(trial["metrics"])
        assert trial["value"] == trial["metrics"]["output_tokens_per_s"] > 0
        assert trial["metrics"]["requests_counted"] >= 100
    assert listed["trials"][0]["params"] == {"max-num-seqs": 8}
    assert listed["trials"][1]["params"] == {}
    for trial in listed["trials"][2:]:
        assert set(trial["params"]) == {
            "max-num-seqs",
            "max-num-batched-tokens",
            "enable-prefix-caching",
            "block-size",
        }
    assert listed["best"] == max(listed["trials"], key=lambda trial: trial["value"])["number"]


def test_show_tells_one_trial_in_full(reader):
    shown = reader.run("show", "2")
    assert shown.exit_code == 0, shown.said
    for words in ("trial #2 of study drill: search, feasible", "searched: max-num-seqs=", "P99 E2E", "measuring: "):
        assert words in shown.out
    detail = reader.json("show", "2", "--json")
    assert set(detail) >= TRIAL_KEYS | {"study", "config", "score", "attempts", "notes"}
    (attempt,) = detail["attempts"]
    assert [stage["stage"] for stage in attempt["stages"]] == ["launching", "warming_up", "measuring", "stopping"]
    assert all(stage["duration_s"] > 0 for stage in attempt["stages"])
    assert attempt["ended_at"] is not None


def test_export_in_every_form(reader, listed):
    chosen = listed["trials"][listed["recommended"]["trial"]]
    as_json, as_command, as_flags = run_at_once(
        reader,
        ("export", "--format", "json"),
        ("export", "--format", "command"),
        ("export", "--format", "flags", "--trial", "2"),
    )
    told = json.loads(as_json.out)
    assert set(told) == {"argv", "flags", "env", "trial", "value", "baseline_value", "improvement", "confirmation"}
    assert (told["trial"], told["value"]) == (chosen["number"], chosen["value"])
    assert told["baseline_value"] == listed["trials"][0]["value"]
    assert told["improvement"] == pytest.approx(told["value"] / told["baseline_value"])
    assert told["argv"][:3] == [sys.executable, "-m", "optimizer.engine.simulated"]
    assert not any("autotune-" in word for word in told["argv"]), "the nonce of a launch is for that launch alone"
    assert shlex.split(as_command.out.replace("\\\n", "")) == told["argv"]
    flags = shlex.split(as_flags.out)
    params = listed["trials"][2]["params"]
    assert flags[flags.index("--max-num-seqs") + 1] == str(params["max-num-seqs"])
    assert "--load-format" not in flags, "random weights are for measuring only"


def test_every_attempt_leaves_its_log_and_its_request_samples(unbroken, listed):
    for trial in listed["trials"]:
        folder = unbroken.folder / "autotune" / STUDY / f"trial-{trial['number']:04d}" / "attempt-1"
        assert "Application startup complete" in (folder / "engine.log").read_text()
        with gzip.open(folder / "requests.csv.gz", "rt", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == trial["metrics"]["requests_counted"]


CRASHES = {
    "recorded but not told": (
        "UPDATE trials SET state = 'RUNNING' WHERE number = 4",
        "DELETE FROM trial_values WHERE trial_id = 5",
    ),
    "asked but not recorded": (
        "UPDATE trials SET state = 'RUNNING' WHERE number = 4",
        "DELETE FROM trial_values WHERE trial_id = 5",
        "DELETE FROM autotune_attempts WHERE trial_id = 5",
        "DELETE FROM autotune_trials WHERE number = 4",
    ),
    "asked for half": (
        "UPDATE trials SET state = 'RUNNING' WHERE number = 4",
        "DELETE FROM trial_values WHERE trial_id = 5",
        "DELETE FROM trial_params WHERE trial_id = 5",
        "DELETE FROM autotune_attempts WHERE trial_id = 5",
        "DELETE FROM autotune_trials WHERE number = 4",
    ),
}
"""How a crash between two writes leaves the database."""
SAME, LARGER = "the same command", "a larger total"


@dataclass(frozen=True)
class GoneOn:
    """What a command made of a copy of the finished study."""

    ran: Finished
    before: list[Recorded]
    after: list[Recorded]


def go_on(unbroken: FinishedStudy, folder: Path, crash: tuple[str, ...], words: tuple[str, ...]) -> GoneOn:
    shutil.copytree(unbroken.folder, folder)
    driver, history = driver_of_its_own(folder), History.of(folder)
    before = history.trials()
    history.change(*crash)
    try:
        return GoneOn(driver.run(*RUN, *words), before, history.trials())
    finally:
        driver.close()


@pytest.fixture(scope="module")
def gone_on(unbroken, tmp_path_factory):
    """Copies of the finished study with which a run went on, by what was done to each."""
    todo: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        SAME: ((), ()),
        LARGER: ((), ("--trials", str(TRIALS + 1))),
    }
    todo |= {crash: (statements, ()) for crash, statements in CRASHES.items()}
    base = tmp_path_factory.mktemp("gone-on")
    calls = [functools.partial(go_on, unbroken, base / str(number), *what) for number, what in enumerate(todo.values())]
    return dict(zip(todo, side_by_side(*calls), strict=True))


def test_the_same_command_again_does_nothing(gone_on):
    again = gone_on[SAME]
    assert again.ran.exit_code == 0, again.ran.said
    assert f"study {STUDY} goes on: 5 of 5 trials are done" in again.ran.err
    assert f"{TRIALS} of {TRIALS} trials" in again.ran.out
    assert again.after == again.before


def test_a_larger_total_goes_on(gone_on):
    more = gone_on[LARGER]
    assert more.ran.exit_code == 0, more.ran.said
    assert_exact(more.after, TRIALS + 1)
    assert more.after[:TRIALS] == more.before


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_between_two_writes_is_repaired(gone_on, crash):
    resumed = gone_on[crash]
    assert resumed.ran.exit_code == 0, resumed.ran.said
    assert_exact(resumed.after, TRIALS)
    assert resumed.after[4].params == resumed.before[4].params
    assert resumed.after[4].attempts == [1]


def test_another_space_under_the_same_name_is_refused_with_the_difference(driver_on_copy):
    space = driver_on_copy.folder / "space.yaml"
    space.write_text(space.read_text().replace("high: 64", "high: 32").replace("default: 64", "default: 32"))
    refused = driver_on_copy.run(*RUN)
    assert refused.exit_code == 2
    assert "parameters.max-num-seqs.high: 64 -> 32" in refused.err
    assert "hint: " in refused.err
    assert_exact(History.of(driver_on_copy.folder).trials(), TRIALS)


def test_params_are_plain_json_numbers(unbroken):
    params = json.dumps(History.of(unbroken.folder).trials()[2].params)
    assert re.fullmatch(r'\{("[a-z-]+": (\d+|true|false)(, )?)+\}', params)


def test_the_usual_sampler_says_why_it_proposes_what_it_does(driver):
    """Two settings that knowledge suggests, and then its own model's."""
    write_space(driver.folder, {"sampler": DEFAULT_SAMPLER, "trials": 5})
    ran = driver.run(*RUN)
    assert ran.exit_code == 0, ran.said
    assert_exact(History.of(driver.folder).trials(), 5)
    shows = [("show", str(number), "--json") for number in (2, 4)]
    *shown, status = run_at_once(driver, *shows, ("status", "--study", STUDY, "--json"))
    notes = [" ".join(json.loads(one.out)["notes"]) for one in shown]
    assert "first trial 1 of 2" in notes[0], notes
    assert f"proposed by {DEFAULT_SAMPLER}" in notes[1], notes
    listed = json.loads(status.out)
    assert listed["recommended"]["reason"] in " ".join(ran.out.split())
