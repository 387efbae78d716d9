"""One study on a live vLLM on the CPU: interrupted, killed, resumed, exported, and its flags started by hand."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.drill import History, Recorded, assert_exact
from tests.driving import GONE_WITHIN_S, LIMIT_S, Driver, Finished, Running

# The fixture below runs a whole study for whichever test comes first.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

TRIALS = 4
START_LIMIT_S = 240.0
"""A cold start imports vLLM three times over; on two slow cores that takes a minute or more."""
RUN = ("run", "--space", "short.yaml", "--trials", str(TRIALS))
POOL_TOLERANCE = 0.05
"""On the CPU vLLM takes its worker's resident memory off the pool, and a few MiB of that come and go: 0.4 to 2.7 % were
seen between a worker forked from a warm spare and one that imported all by itself."""
KV_SIZE = re.compile(r"KV cache size: ([\d,]+) tokens")


@dataclass
class Told:
    """What the study went through."""

    stopped: Finished
    ended: Finished
    gone_s: dict[str, float] = field(default_factory=dict)
    descendants: dict[str, int] = field(default_factory=dict)
    trials_after: dict[str, list[Recorded]] = field(default_factory=dict)


def write_short_space(folder: Path, project_root: Path) -> None:
    """The built-in space with a short window, and a limit that the requests of so short a window can decide."""
    space = yaml.safe_load((project_root / "search_spaces" / "builtin" / "tiny-cpu.yaml").read_text())
    space["workload"]["window"] = {"min_s": 4, "max_s": 60, "min_requests": 100}
    space["slos"] = ["p50_e2e<=3x"]
    (folder / "short.yaml").write_text(yaml.safe_dump(space, sort_keys=False))


@pytest.fixture(scope="module")
def told(driver, project_root):
    """Ctrl-C in the load of trial 0, `kill -9` in that of trial 1, then to the end."""
    write_short_space(driver.folder, project_root)
    gone_s, descendants, after = {}, {}, {}
    first = loading(driver, 0)
    descendants["Ctrl-C"], gone_s["Ctrl-C"] = end(driver, first, lambda: first.send_to_group(signal.SIGINT))
    stopped = first.finish()
    after["Ctrl-C"] = History.of(driver.folder).trials()
    second = loading(driver, 1)
    descendants["kill -9"], gone_s["kill -9"] = end(driver, second, second.process.kill)
    after["kill -9"] = History.of(driver.folder).trials()
    ended = driver.run(*RUN, limit_s=600)
    after["the end"] = History.of(driver.folder).trials()
    return Told(stopped, ended, gone_s, descendants, after)


def loading(driver: Driver, number: int) -> Running:
    """A run that is in the middle of loading the engine of a trial."""
    run = driver.start(*RUN)
    run.wait_for(f"trial #{number}: measuring", limit_s=(number + 1) * START_LIMIT_S)
    return run


def end(driver: Driver, run: Running, how: Callable[[], None]) -> tuple[int, float]:
    """Ends a run; how many processes it had below it, and for how many seconds one of them outlived it."""
    below = psutil.Process(run.process.pid).children(recursive=True)
    how()
    run.finish()
    gone_s = driver.wait_until(lambda: not driver.left() and not any(map(alive, below)), "processes are left")
    return len(below), gone_s


def alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture(scope="module")
def listed(told, driver):
    (name,) = [study["study"] for study in driver.json("status", "--json")["studies"]]
    return driver.json("status", "--study", name, "--json")


@pytest.mark.parametrize("way", ["Ctrl-C", "kill -9"])
def test_no_vllm_process_outlives_the_optimizer(told, way):
    assert told.descendants[way] >= 3, "guard, API server and EngineCore"
    assert told.gone_s[way] < GONE_WITHIN_S


def test_ctrl_c_ends_with_130_and_the_line_that_resumes(told):
    assert told.stopped.exit_code == 130, told.stopped.said
    assert f"go on with: python -m optimizer {' '.join(RUN)}" in told.stopped.err
    (trial,) = told.trials_after["Ctrl-C"]
    assert (trial.number, trial.state) == (0, "interrupted")


def test_the_resumed_study_has_exactly_its_trials(told):
    assert told.ended.exit_code == 0, told.ended.said
    trials = told.trials_after["the end"]
    assert_exact(trials, TRIALS)
    assert told.trials_after["kill -9"][0] == trials[0]
    for number, way in enumerate(("Ctrl-C", "kill -9")):
        # One more at the least: a host whose memory grows meanwhile has an attempt repeated.
        assert len(trials[number].attempts) > len(told.trials_after[way][number].attempts)


def test_baseline_and_defaults_are_measured_and_feasible(listed):
    for trial in listed["trials"][:2]:
        assert (trial["state"], trial["failure"]) == ("feasible", None), trial
        metrics = trial["metrics"]
        assert metrics["requests_counted"] >= 100
        assert metrics["output_tokens_per_s"] > 0
        assert 0 < metrics["p99_ttft_ms"] <= metrics["p99_e2e_ms"]
        assert metrics["kv_cache_tokens"] > 0
        assert metrics["preemptions"] is not None
    assert listed["trials"][0]["metrics"]["prefix_cache_hit_rate"] in (0, None), "the baseline caches no prefix"
    assert listed["trials"][1]["metrics"]["prefix_cache_hit_rate"] > 0.3
    assert listed["best"] is not None


def test_no_trial_failed_without_a_known_cause(listed):
    for trial in listed["trials"]:
        assert trial["failure"] is None or trial["failure"]["kind"] != "unknown", trial["failure"]


def test_the_exported_command_starts_cold_and_serves_what_the_warm_spare_served(told, listed, driver):
    """The study's engines are forked from a process that has imported vLLM; a person starts one from scratch."""
    best = listed["trials"][listed["recommended"]["trial"]]
    exported = driver.run("export", "--format", "command")
    assert exported.exit_code == 0, exported.said
    port = free_port()
    assert exported.out.count("--port 8000") == 1
    server = driver.shell("exec 1>&2; " + exported.out.replace("--port 8000", f"--port {port}"))
    try:
        driver.wait_until(lambda: serves(server, port), "it does not serve", limit_s=START_LIMIT_S)
        (model,) = [entry["id"] for entry in ask(port, "GET", "/v1/models")["data"]]
        wanted = {"model": model, "prompt": "hello", "max_tokens": 5, "ignore_eos": True}
        assert ask(port, "POST", "/v1/completions", wanted)["usage"]["completion_tokens"] == 5
        said = KV_SIZE.search(server.text)
        assert said is not None, server.text
        pool_tokens = int(said[1].replace(",", ""))
        assert pool_tokens == pytest.approx(best["metrics"]["kv_cache_tokens"], rel=POOL_TOLERANCE)
    finally:
        server.send_to_group(signal.SIGTERM)
        # In vLLM's own time: no guard of ours looks after it.
        driver.wait_until(lambda: not driver.left(), "processes are left", limit_s=LIMIT_S)


def serves(server: Running, port: int) -> bool:
    assert server.process.poll() is None, server.text
    with closing(HTTPConnection("127.0.0.1", port, timeout=5)) as connection, suppress(OSError):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False


def ask(port: int, method: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body)
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return json.load(answer)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_real_crash_is_told_by_its_cause(told, driver):
    crashed = driver.run(*RUN, "--study", "crash", "--set", "block-size=16", limit_s=START_LIMIT_S)
    assert crashed.exit_code == 2, crashed.said
    assert "the baseline failed (invalid_combination" in crashed.err
    (trial,) = driver.json("status", "--study", "crash", "--json")["trials"]
    failure = trial["failure"]
    assert (failure["kind"], failure["stage"], failure["blame"]) == ("invalid_combination", "launching", "config")
    assert any("No common block size for 16" in line for line in failure["evidence"]), failure
    assert not driver.left()


def test_a_space_of_which_nothing_fits_launches_nothing(told, driver):
    refused = driver.run(*RUN, "--study", "tight", "--set", "num-gpu-blocks-override=4", limit_s=START_LIMIT_S)
    assert refused.exit_code == 2, refused.said
    assert "nothing in the space can start" in refused.err
    assert "is smaller than one request" in refused.err
    assert not driver.left()
