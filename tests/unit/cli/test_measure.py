"""`measure` from the command line: which options go where, what it exits with, and what starts nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from optimizer.app.measure import MeasureRequest
from optimizer.app.measure_endpoint import EndpointOutcome, EndpointRequest
from optimizer.app.request import RunRequest
from optimizer.app.traffic import TrafficOptions
from optimizer.config.models import package_folder
from optimizer.core.errors import HostError
from optimizer.report.measure_view import MeasureView

URL = "http://127.0.0.1:8000"


def view(verdict: str | None = None) -> MeasureView:
    return MeasureView(
        subject=URL, mode="online", simulated=False, complete=True, engine=None, model="m", workload="w", seed=0,
        confidence=0.9, metrics=[], verdict=verdict, limits=[], stopped_by=None, bound=None, curve=None, notes=[],
        folder=None,
    )  # fmt: skip


@pytest.fixture
def measured(monkeypatch):
    """Puts an outcome in place of the measurement; gives the requests that were made."""
    requests: list[Any] = []

    def install(verdict: str | None = None, trouble: HostError | None = None):
        def space(request, watch):
            requests.append(request)
            return view(verdict)

        def endpoint(request, watch):
            requests.append(request)
            return EndpointOutcome(view(verdict), trouble)

        monkeypatch.setattr("optimizer.app.measure.measure_space", space)
        monkeypatch.setattr("optimizer.app.measure_endpoint.measure_endpoint", endpoint)
        return requests

    return install


def test_options_reach_the_space(invoke, measured):
    requests = measured()
    result = invoke(
        "measure", "--space", "tiny-cpu", "--slo", "p99_e2e_ms=800", "--rate", "8", "--concurrency", "32", "--duration",
        "90s", "--set", "block-size=16", "--engine", "simulated", "--seed", "3", "--", "--max-num-seqs", "64",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    run = RunRequest(
        space="tiny-cpu", slos=("p99_e2e_ms=800",), set_flags=("block-size=16",), engine="simulated", seed=3,
        baseline="--max-num-seqs 64",
    )  # fmt: skip
    assert requests == [MeasureRequest(run, TrafficOptions(None, 32, 8.0, 90.0))]


def test_a_capacity_is_asked_for_by_its_objective(invoke, measured):
    requests = measured("feasible")
    result = invoke("measure", "--space", "tiny-cpu", "--objective", "capacity", "--slo", "p99_e2e_ms=800")
    assert result.exit_code == 0, result.stderr
    assert (requests[0].run.objective, requests[0].mode) == ("capacity", "capacity")


def test_options_reach_the_endpoint(invoke, measured):
    requests = measured()
    result = invoke(
        "measure", "--endpoint", URL, "--model", "m", "--workload", "w.yaml", "--requests", "500", "--api-key-env",
        "SERVER_KEY", "--tokenizer", "/m", "--yes", "--offline",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert requests == [
        EndpointRequest(
            URL, "m", "w.yaml", (), TrafficOptions(requests=500), None, True, "SERVER_KEY", "/m", 0, anywhere=True
        )
    ]


@pytest.mark.parametrize(
    ("words", "levels"),
    [
        (["--sweep"], "auto"),
        (["--sweep", "--rate", "8"], "auto"),
        (["--sweep", "1:64"], "1:64"),
        (["--sweep", "1:64:7", "--json"], "1:64:7"),
        (["--sweep=2:4"], "2:4"),
        ([], None),
    ],
)
def test_levels_may_be_left_out(invoke, measured, words, levels):
    requests = measured()
    result = invoke("measure", "--endpoint", URL, *words)
    assert result.exit_code == 0, result.stderr
    assert requests[0].sweep == levels


def test_a_sweep_may_stand_before_the_flags(invoke, measured):
    requests = measured()
    assert invoke("measure", "--space", "tiny-cpu", "--sweep", "--", "--max-num-seqs", "8").exit_code == 0
    assert (requests[0].sweep, requests[0].run.baseline) == ("auto", "--max-num-seqs 8")


@pytest.mark.parametrize(("verdict", "code"), [(None, 0), ("feasible", 0), ("infeasible", 3), ("undecided", 3)])
def test_the_exit_code_tells_whether_the_limits_hold(invoke, measured, verdict, code):
    measured(verdict)
    result = invoke("measure", "--endpoint", URL)
    assert result.exit_code == code
    assert "measured" in result.stdout


def test_a_server_that_vanished_ends_with_four_after_what_was_seen(invoke, measured):
    measured("feasible", HostError("the server vanished: no connection"))
    result = invoke("measure", "--endpoint", URL, "--json")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["subject"] == URL
    assert result.stderr.endswith("error: the server vanished: no connection\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "there is nothing to measure"),
        (["--space", "tiny-cpu", "--endpoint", URL], "exclude each other"),
        (["--endpoint", URL, "--", "--max-num-seqs", "8"], "--max-num-seqs: flags have no effect"),
        (["--endpoint", URL, "--objective", "capacity"], "--objective goes with --space alone"),
        (["--endpoint", URL, "--set", "block-size=16"], "--set goes with --space alone"),
        (["--endpoint", URL, "--engine-python", "/p"], "--engine-python goes with --space alone"),
        (["--space", "tiny-cpu", "--api-key-env", "K"], "--api-key-env goes with --endpoint alone"),
        (["--space", "tiny-cpu", "--yes"], "--yes goes with --endpoint alone"),
        (["--endpoint", URL, "--duration", "soon"], "--duration 'soon'"),
    ],
)
def test_what_does_not_go_together_starts_nothing(invoke, measured, words, told):
    requests = measured()
    result = invoke("measure", *words)
    assert (result.exit_code, result.stdout, requests) == (2, "", [])
    assert told in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--endpoint", URL, "--rate", "0"], "--rate 0"),
        (["--endpoint", URL, "--rate=-1"], "--rate -1"),
        (["--endpoint", URL, "--requests", "0"], "--requests 0"),
        (["--endpoint", URL, "--slo", "p99_latency=800"], "p99_latency"),
        (["--endpoint", URL, "--slo", "p99_e2e_ms=-5"], "must be a finite number above zero"),
        (["--endpoint", URL, "--slo", "p99_e2e<=1.0x"], "has no baseline"),
        (["--endpoint", URL, "--workload", "chat"], "there is no workload 'chat'"),
        (["--endpoint", URL, "--sweep", "8:1"], "--sweep 8:1"),
        (["--endpoint", URL, "--sweep", "--offline"], "exclude each other"),
        (["--endpoint", URL, "--offline", "--slo", "p99_e2e_ms=5"], "--offline"),
        (["--endpoint", URL, "--offline", "--rate", "3"], "--rate 3: with --offline"),
        (["--space", "tiny-cpu", "--offline", "--concurrency", "4"], "--concurrency 4: with --offline"),
        (["--endpoint", "http://10.0.0.1:8000"], "not on this host"),
        (["--endpoint", "127.0.0.1:8000"], "no address of a server"),
        (["--endpoint", URL, "--api-key-env", "NONE_SUCH"], "this variable is not set"),
        (["--space", "tiny-cpu", "--slo", "p99_e2e<=1.0x", "--engine", "simulated"], "no baseline to multiply"),
        (["--space", "tiny-cpu", "--rate", "0", "--engine", "simulated"], "--rate 0"),
        (["--space", "none-such"], "none-such"),
        (["--space", "tiny-cpu", "--engine", "simulated", "--objective", "goodput"], "--objective goodput"),
        (
            ["--space", "tiny-cpu", "--engine", "simulated", "--objective", "capacity"],
            "is a multiple of what the baseline",
        ),
    ],
)
def test_wrong_input_starts_nothing(invoke, words, told, tmp_home):
    result = invoke("measure", *words)
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert told in result.stderr
    assert not (tmp_home / "autotune").exists()


def dataset(folder: Path) -> str:
    """A workload that takes its requests from `rows.jsonl` beside it."""
    file = folder / "w.yaml"
    file.write_text(
        "name: w\narrivals: {kind: closed_loop, in_flight: 2}\nsource: {kind: jsonl, path: rows.jsonl}\n"
        "warmup: {requests: 1, max_s: 5}\nwindow: {min_s: 1, max_s: 2, min_requests: 3}\n"
    )
    return str(file)


def test_an_empty_dataset_is_named(invoke, tmp_path):
    (tmp_path / "rows.jsonl").write_text("")
    result = invoke("measure", "--endpoint", URL, "--workload", dataset(tmp_path))
    assert result.exit_code == 2
    assert "rows.jsonl: the file has no requests" in result.stderr


@pytest.mark.parametrize("line", [1, 100_000])
@pytest.mark.parametrize(
    ("spoilt", "told"), [('{"prompt": [1, 2', "this is not JSON"), ('{"output_tokens": 6}', "prompt is missing")]
)
def test_a_corrupt_line_is_named_with_its_number(invoke, tmp_path, line, spoilt, told):
    lines = ['{"prompt": [1, 2, 3], "output_tokens": 6}'] * 100_000
    lines[line - 1] = spoilt
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    result = invoke("measure", "--endpoint", URL, "--workload", dataset(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"rows.jsonl: line {line}: {told}" in result.stderr


@pytest.mark.parametrize(
    ("content", "told"), [(None, "tokenizer missing"), ("", "the file is empty"), ('{"model": ', "EOF while parsing")]
)
def test_a_model_without_a_tokenizer_that_can_be_read_is_named(invoke, tmp_path, tmp_home, content, told):
    model = tmp_path / "model"
    shutil.copytree(package_folder("models") / "tiny-kv", model)
    (model / "tokenizer.json").unlink()
    if content is not None:
        (model / "tokenizer.json").write_text(content)
    (tmp_path / "w.yaml").write_text(
        "name: w\narrivals: {kind: closed_loop, in_flight: 2}\ncontent: text\nprompt_tokens: 16\noutput_tokens: 8\n"
        "warmup: {requests: 1, max_s: 5}\nwindow: {min_s: 1, max_s: 2, min_requests: 3}\n"
    )
    words = ("--space", "tiny-cpu", "--engine", "simulated", "--model", str(model))
    result = invoke("measure", *words, "--workload", str(tmp_path / "w.yaml"))
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert told in result.stderr
