"""`measure` on the simulated engine: launched here, or running already and owned by somebody else."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from optimizer.config import resolve_model
from optimizer.host.ports import free_port
from tests.drill import SPACE, SPEED
from tests.driving import LIMIT_S, Driver

MEASURE = ("measure", "--space", "space.yaml", "--engine", "simulated")
QUICK = ("--requests", "60")


def status_of(url: str, path: str) -> int | None:
    """The status of a GET, or None without an answer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=5)
    with closing(connection), suppress(OSError, http.client.HTTPException):
        connection.request("GET", path)
        return connection.getresponse().status
    return None


@dataclass
class Server:
    """A simulated engine that no command of ours has started."""

    process: subprocess.Popen[bytes]
    url: str

    @property
    def answers(self) -> bool:
        return status_of(self.url, "/health") == 200

    def vanish(self) -> None:
        """Kills it with the EngineCore behind it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LIMIT_S)


@contextmanager
def started_server(folder: Path) -> Iterator[Server]:
    """One that serves `theirs`, killed at the end of the block."""
    port = free_port()
    model = resolve_model("tiny-kv", origin="test").target
    command = [sys.executable, "-m", "optimizer.engine.simulated", "--model", model, "--served-model-name", "theirs"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--load-format", "dummy", "--host", "127.0.0.1", "--port", str(port)],
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **SPEED},
            start_new_session=True,
        )
    found = Server(process, f"http://127.0.0.1:{port}")
    try:
        Driver(folder).wait_until(lambda: found.answers, "the server does not come up", limit_s=LIMIT_S)
        yield found
    finally:
        found.vanish()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For all tests that leave it as it is."""
    with started_server(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def workload(tmp_path: Path) -> str:
    """The drill's traffic as a file of its own."""
    file = tmp_path / "traffic.yaml"
    file.write_text(yaml.safe_dump(SPACE["workload"]))
    return str(file)


def test_one_configuration_in_full(driver):
    done = driver.run(*MEASURE, *QUICK, "--json", "--", "--max-num-seqs", "4")
    assert done.exit_code == 0, done.said
    shown = json.loads(done.out)
    figures = {metric["name"]: metric["value"] for metric in shown["metrics"]}
    assert figures["requests_counted"] >= 60
    assert figures["output_tokens_per_s"] > 0
    assert figures["p99_e2e_ms"] >= figures["p50_e2e_ms"] > 0
    assert (shown["mode"], shown["simulated"], shown["complete"], shown["verdict"]) == ("online", True, True, None)
    assert "--max-num-seqs 4" in shown["subject"]
    assert shown["bound"]["kind"]
    assert any("one configuration has no baseline" in note for note in shown["notes"]), "the space's limit is relative"
    assert list(Path(shown["folder"]).rglob("engine.log"))
    assert list(Path(shown["folder"]).rglob("requests.csv.gz"))
    assert not driver.left()
    assert not (driver.folder / "autotune" / "studies.db").exists(), "a measurement is no study"


@pytest.mark.parametrize(
    ("limit", "code", "verdict"), [("p50_e2e_ms=60000", 0, "feasible"), ("p50_e2e_ms=0.01", 3, "infeasible")]
)
def test_a_limit_decides_the_exit_code(inside, limit, code, verdict):
    # Slow, so that the client's own delays are small beside what the engine takes.
    done = inside.run(*MEASURE, "--slo", limit, AUTOTUNE_SIM_SPEED="1")
    assert done.exit_code == code, done.said
    assert f"limits: {verdict}" in done.out
    assert "SIMULATED ENGINE" in done.out
    assert not inside.left()


def test_a_curve_over_levels(inside):
    done = inside.run(*MEASURE, *QUICK, "--sweep", "1:4:3", "--json")
    assert done.exit_code == 0, done.said
    curve = json.loads(done.out)["curve"]
    assert [point["level"] for point in curve["points"]] == [1.0, 2.0, 4.0]
    assert all(point["metrics"]["output_tokens_per_s"] > 0 for point in curve["points"])
    assert curve["unit"] == "requests in flight"


def test_a_capacity_with_every_rate_and_all_figures(inside):
    window = {"min_s": 0.3, "max_s": 1.5, "min_requests": 20}
    (inside.folder / "short.yaml").write_text(yaml.safe_dump({**SPACE["workload"], "window": window}))
    # Far above what a busy machine adds, and a low percentile, which a few requests decide. The mean binds nowhere, but
    # no model beside the engine knows a mean: what a model does at each rate takes half a minute to compute, which is
    # left to the test of a study of capacity.
    limits = ("--slo", "p10_e2e_ms=3000", "--slo", "mean_e2e_ms=60000")
    asked = ("--objective", "capacity", *limits, "--workload", "short.yaml", "--json")
    done = inside.run(*MEASURE, *asked, "--", "--max-num-seqs", "4", AUTOTUNE_SIM_SPEED="2")
    shown = json.loads(done.out)
    assert done.exit_code == (0 if shown["verdict"] == "feasible" else 3), done.said
    capacity, figures = shown["capacity"], {metric["name"]: metric["value"] for metric in shown["metrics"]}
    assert shown["mode"] == "capacity"
    assert capacity["served"] > 0
    assert len(capacity["rates"]) >= 2
    assert capacity["metrics_at"] in [rate["rate_per_s"] for rate in capacity["rates"]]
    if capacity["value"] is not None:
        feasible = [r["rate_per_s"] for r in capacity["rates"] if r["verdict"] == "feasible" and not r["probe"]]
        assert capacity["value"] == max(feasible) == capacity["metrics_at"]
    assert figures["p50_e2e_ms"] > 0
    assert len(list(Path(shown["folder"]).rglob("engine.log"))) == 1, "one engine life"
    assert not inside.left()


def test_a_batch_is_named_so(inside):
    done = inside.run(*MEASURE, *QUICK, "--offline")
    assert done.exit_code == 0, done.said
    assert "OFFLINE: all requests at once." in done.out
    assert "batch output tok/s" in done.out
    assert "P99 E2E" not in done.out


def test_flags_that_the_engine_refuses(inside):
    done = inside.run(*MEASURE, "--", "--max-num-sqs", "4")
    assert done.exit_code == 2
    assert "did you mean --max-num-seqs" in done.err
    done = inside.run(*MEASURE, "--", "--max-num-seqs", "64", "--max-num-batched-tokens", "32")
    assert done.exit_code == 2, done.said
    assert "max_num_batched_tokens" in done.err
    assert not inside.left()


def test_ctrl_c_ends_engine_and_all(driver):
    run = driver.start(*MEASURE, "--duration", "60s")
    run.wait_for("measuring")
    assert driver.engines()
    run.send(signal.SIGINT)
    assert driver.wait_until_all_gone() < 10.0
    done = run.finish()
    assert done.exit_code == 130, done.said
    assert "no engine is left" in done.err
    assert "Traceback" not in done.said


def test_a_server_that_runs_is_measured_and_left_alone(inside, server, workload):
    done = inside.run("measure", "--endpoint", server.url, "--workload", workload, *QUICK, "--rate", "40", "--json")
    assert done.exit_code == 0, done.said
    shown = json.loads(done.out)
    assert (shown["model"], shown["folder"], shown["subject"]) == ("theirs", None, server.url)
    assert "40 requests/s (Poisson)" in shown["workload"]
    assert any("was not reset" in note for note in shown["notes"])
    figures = {metric["name"]: metric["value"] for metric in shown["metrics"]}
    assert figures["kv_cache_tokens"] > 0, "its /metrics are read"
    assert figures["engine_cpu_cores"] is None, "its processes are not ours to look into"
    assert server.answers
    assert not (inside.folder / "autotune").exists()


def test_a_model_that_it_does_not_serve(inside, server, workload):
    done = inside.run("measure", "--endpoint", server.url, "--workload", workload, "--model", "other")
    assert done.exit_code == 2
    assert "it serves: theirs" in done.err


def test_a_server_that_vanishes_is_told_after_what_was_seen(driver, tmp_path, workload):
    with started_server(tmp_path) as server:
        run = driver.start("measure", "--endpoint", server.url, "--workload", workload, "--duration", "60s")
        run.wait_for("window open")
        server.vanish()
        done = run.finish()
    assert done.exit_code == 4, done.said
    assert "the server vanished" in done.err
    assert "BROKEN OFF" in done.out
    assert "requests failed" in done.out
    assert "Traceback" not in done.said


def test_ctrl_c_leaves_the_server_alone(driver, server, workload):
    run = driver.start("measure", "--endpoint", server.url, "--workload", workload, "--duration", "60s")
    run.wait_for("measuring")
    run.send(signal.SIGINT)
    done = run.finish()
    assert done.exit_code == 130, done.said
    assert server.answers


def test_a_server_that_answers_html(inside):
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"],
        cwd=inside.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        inside.wait_until(lambda: status_of(url, "/") == 200, "the server does not come up", limit_s=LIMIT_S)
        done = inside.run("measure", "--endpoint", url)
    finally:
        process.kill()
        process.wait(LIMIT_S)
    assert done.exit_code == 4, done.said
    assert "text/html: this is no server of the OpenAI API" in done.err
