"""Engines that fail: what a study makes of them, and what it tells."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.drill import RUN, STUDY, History, assert_exact, blind_params, stuck, write_space
from tests.integration.study.side_by_side import run_at_once

pytestmark = pytest.mark.timeout(300)

LOAD_FORMAT = {"load-format": "dummy"}


def script(*faults: dict[str, object]) -> dict[str, str]:
    return {"AUTOTUNE_SIM_FAULTS": json.dumps(faults)}


def a_study_goes_on_after_crashes_and_never_calls_one_best(driver):
    """Large blocks do not start, small batches crash under load, and the first launch of all loses its port."""
    trials = 4
    state = {"AUTOTUNE_SIM_STATE": str(driver.folder / "launches")}
    faults = script(
        {"fault": "port_taken", "nth_launch": 1},
        {"fault": "kv_too_small", "when": {"block-size": 32}},
        {"fault": "oom_under_load", "when": {"block-size": 16, "max-num-batched-tokens": 512}, "after_requests": 60},
    )
    ran = driver.run(*RUN, "--trials", str(trials), **state, **faults)
    assert ran.exit_code == 0, ran.said
    assert "trying it again" in ran.err
    assert "kv_cache_too_small" in ran.out
    recorded = History.of(driver.folder).trials()
    assert_exact(recorded, trials)
    assert [trial.attempts for trial in recorded] == [[1, 2], [1], [1], [1]]

    listed = driver.json("status", "--study", STUDY, "--json")
    states = {}
    for trial in listed["trials"]:
        params, failure = trial["params"], trial["failure"]
        expected = None
        if params.get("block-size") == 32:
            expected = ("kv_cache_too_small", "launching", "config")
        elif params.get("max-num-batched-tokens") == 512:
            expected = ("out_of_memory", "measuring", "config")
        assert (failure and (failure["kind"], failure["stage"], failure["blame"])) == expected, trial
        assert trial["state"] == ("feasible" if expected is None else "failed")
        assert expected is None or failure["evidence"], "a failure shows what it was told from"
        states[trial["number"]] = trial["state"]
    kinds = {trial["failure"]["kind"] for trial in listed["trials"] if trial["failure"]}
    assert kinds == {"kv_cache_too_small", "out_of_memory"}
    assert set(states.values()) == {"feasible", "failed"}
    assert states[listed["best"]] == "feasible"


def a_host_that_fails_again_and_again_ends_the_run_and_the_trial_waits(driver):
    broken = driver.run(*RUN, "--trials", "2", **script({"fault": "port_taken"}))
    assert broken.exit_code == 4, broken.said
    assert "trial 0 met a fault of the host" in broken.err
    assert "Address already in use" in broken.err
    assert not driver.left()
    (trial,) = History.of(driver.folder).trials()
    assert (trial.state, trial.attempts, trial.told) == ("interrupted", [1, 2, 3], "RUNNING")

    mended = driver.run(*RUN, "--trials", "2")
    assert mended.exit_code == 0, mended.said
    trials = History.of(driver.folder).trials()
    assert_exact(trials, 2)
    assert [trial.attempts for trial in trials] == [[1, 2, 3, 4], [1]]


def nothing_feasible_ends_with_3_and_names_the_nearest_miss(driver):
    ran = driver.run(*RUN, "--trials", "2", "--slo", "p99_e2e_ms=1")
    assert ran.exit_code == 3, ran.said
    assert "No trial met the limits." in ran.out
    assert "The limit that binds: P99 E2E, not met by 2 of 2 measured trials." in ran.out
    assert "Nearest: #" in ran.out
    assert "Least to relax: P99 E2E from 1 ms to " in " ".join(ran.out.split())
    assert f"no trial of study {STUDY} meets its limits" in ran.err
    status, export = run_at_once(driver, ("status", "--study", STUDY, "--json"), ("export",))
    listed = json.loads(status.out)
    assert (listed["best"], [trial["state"] for trial in listed["trials"]]) == (None, ["infeasible"] * 2)
    relaxed = listed["nothing_feasible"]["least_relaxation"]
    assert (relaxed["limit"], relaxed["stated"]) == ("p99_e2e_ms", 1.0)
    assert relaxed["needed"] > 1.0
    assert listed["nothing_feasible"]["binding"] == {"limit": "p99_e2e_ms", "not_met": 2, "of": 2}
    assert (export.exit_code, export.out) == (3, "")


def an_engine_that_never_gets_ready_is_stopped_at_its_limit(driver):
    write_space(driver.folder, {"engine": {"start_timeout_s": 3, "flags": LOAD_FORMAT}})
    ran = driver.run(*RUN, **script({"fault": "never_ready"}))
    assert ran.exit_code == 2, ran.said
    assert "the baseline failed (startup_timeout" in ran.err
    assert "the limit p50_e2e_ms is relative to it" in ran.err
    assert not driver.left()
    (trial,) = History.of(driver.folder).trials()
    assert trial.state == "failed"


def an_engine_that_hangs_under_load_fails_its_trial_alone(driver):
    write_space(driver.folder, {"engine": {"hang_after_s": 5, "flags": LOAD_FORMAT}})
    faults = script({"fault": "hang_health_200", "when": {"max-num-seqs": 8}, "after_requests": 20})
    ran = driver.run(*RUN, "--trials", "2", "--slo", "p50_e2e_ms=60000", **faults)
    assert ran.exit_code == 0, ran.said
    status, shown = run_at_once(driver, ("status", "--study", STUDY, "--json"), ("show", "0", "--json"))
    baseline, default = json.loads(status.out)["trials"]
    failure = baseline["failure"]
    assert (baseline["state"], failure["kind"], failure["blame"]) == ("failed", "engine_hang", "config")
    assert len(json.loads(shown.out)["attempts"]) == 2, "it may have been chance once"
    assert default["state"] == "feasible"
    assert not driver.left()


def an_engine_that_somebody_kills_is_tried_again_and_counted_once(driver):
    run = driver.start(*RUN, "--trials", "2", **stuck(driver.folder, "measuring"))
    run.wait_for("trial #0: measuring")
    leaders = [one.pid for one in driver.engines() if os.getsid(one.pid) == one.pid]
    assert len(leaders) == 1
    os.kill(leaders[0], signal.SIGKILL)
    ended = run.finish()
    assert ended.exit_code == 0, ended.said
    assert "killed by SIGKILL, which was not ours" in ended.err
    recorded = History.of(driver.folder).trials()
    assert_exact(recorded, 2)
    assert [trial.attempts for trial in recorded] == [[1, 2], [1]]
    shown, status = run_at_once(driver, ("show", "0", "--json"), ("status", "--study", STUDY, "--json"))
    first, second = json.loads(shown.out)["attempts"]
    assert (first["failure"]["kind"], first["failure"]["blame"]) == ("engine_crash", "host")
    assert second["failure"] is None
    assert json.loads(status.out)["trials"][0]["state"] == "feasible"
    assert not driver.left()


DRILLS = (
    a_study_goes_on_after_crashes_and_never_calls_one_best,
    a_host_that_fails_again_and_again_ends_the_run_and_the_trial_waits,
    nothing_feasible_ends_with_3_and_names_the_nearest_miss,
    an_engine_that_never_gets_ready_is_stopped_at_its_limit,
    an_engine_that_hangs_under_load_fails_its_trial_alone,
    an_engine_that_somebody_kills_is_tried_again_and_counted_once,
)


@pytest.mark.parametrize("drill", DRILLS)
def test_whatever_an_engine_does(begun, drill):
    begun[drill].result()


def test_crashes_do_not_change_what_is_proposed(begun, drivers, unbroken):
    crashing = a_study_goes_on_after_crashes_and_never_calls_one_best
    begun[crashing].result()
    recorded = History.of(drivers[crashing].folder).trials()
    assert blind_params(recorded) == blind_params(History.of(unbroken.folder).trials())[: len(recorded)]


@pytest.mark.parametrize("where", ["space", "baseline"])
def test_a_flag_that_the_engine_does_not_know_is_refused_before_anything_is_launched(driver, where):
    words = ["--baseline", "vllm serve tiny-kv --invented-flag 3"]
    if where == "space":
        words = []
        write_space(driver.folder, {"engine": {"flags": {**LOAD_FORMAT, "invented-flag": 3}}})
    refused = driver.run(*RUN, *words)
    assert refused.exit_code == 2, refused.said
    assert "--invented-flag" in refused.err
    assert "hint: " in refused.err
    assert not driver.left()
    assert not History.of(driver.folder).file.exists(), "nothing was begun"
