"""What a person gets wrong: one clear message, the right exit code, and nothing started.

A process of its own has one case of each kind, and each that the process may matter to. The others run inside this one.
"""

from __future__ import annotations

import socket
import venv
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.drill import RUN, SPACE
from tests.driving import Driver, Finished


def assert_refused(driver: Driver, done: Finished, code: int, *words: str) -> None:
    """One message that has all the words, no traceback, and no process left."""
    assert done.exit_code == code, done.said
    assert done.out == ""
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.err
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err, f"{word!r} is not in: {done.err}"
    assert not driver.left()


A_PROCESS_OF_ITS_OWN = {"key unknown", "Python missing", "run on garbage", "status in a folder"}


@pytest.fixture
def either(request: pytest.FixtureRequest, case: str) -> Driver:
    """What runs the commands of a case."""
    driver: Driver = request.getfixturevalue("driver" if case in A_PROCESS_OF_ITS_OWN else "inside")
    return driver


WRONG_OPTIONS = {
    "space unknown": (("--space", "tiny-cpuu"), ["'tiny-cpuu'", "did you mean tiny-cpu", "built-in: "]),
    "space file missing": (("--space", "./none.yaml"), ["none.yaml", "there is no such file"]),
    "model missing": (("--model", "./no/such/model"), ["--model", "./no/such/model", "there is no such directory"]),
    "no trials": (("--trials", "0"), ["--trials 0", "at least 2"]),
    "quote open": (("--baseline", "vllm serve tiny-kv --max-num-seqs '8"), ["--baseline", "quot"]),
    "no vllm": (("--baseline", "nginx -g daemon"), ["--baseline", "nginx"]),
    "baseline empty": (("--baseline", " "), ["--baseline"]),
    "limits at odds": (
        ("--slo", "p99_e2e_ms=800", "--slo", "p99_e2e_ms<=500"),
        ["p99_e2e_ms<=800", "p99_e2e_ms<=500", "contradict each other"],
    ),
    "limit unknown": (("--slo", "p99_latency=800"), ["--slo", "p99_latency", "hint: "]),
    "objective unknown": (("--objective", "troughput"), ["troughput", "did you mean throughput"]),
    "time unknown": (("--time-budget", "soon"), ["--time-budget 'soon'", "1h30m"]),
    "ports reversed": (("--port-range", "9000-8000"), ["--port-range '9000-8000'", "LOW-HIGH"]),
    "flag without value": (("--set", "max-num-seqs"), ["--set max-num-seqs", "FLAG=VALUE"]),
    "flag unknown": (("--set", "max-num-sqs=8"), ["--set: --max-num-sqs", "did you mean --max-num-seqs", "`check`"]),
    "flag of older days": (
        ("--baseline", "vllm serve tiny-kv --swap-space 4"),
        ["--baseline: --swap-space", "instead: --kv-offloading-size 4"],
    ),
    "value of another kind": (("--set", "max-num-seqs=many"), ["--max-num-seqs must be a whole number, not 'many'"]),
    "baseline games the score": (
        ("--baseline", "vllm serve tiny-kv --stream-interval 8"),
        ["--baseline: --stream-interval may not be set", "ITL", "leave it out"],
    ),
    "engine unknown": (("--engine", "tensorrt"), ["--engine tensorrt", "vllm, simulated"]),
    "study is a path": (("--study", "../elsewhere"), ["--study '../elsewhere'"]),
    "storage unknown": (("--storage", "mysql://root@localhost/x"), ["--storage", "mysql"]),
}


@pytest.mark.parametrize("case", WRONG_OPTIONS)
def test_a_wrong_option_is_named(either, case):
    words, said = WRONG_OPTIONS[case]
    assert_refused(either, either.run(*RUN, *words), 2, *said)
    assert not (either.folder / "autotune").exists()


def changed(*keys: str, **change: Any) -> str:
    """The drill's space with something changed deep inside."""
    space = yaml.safe_load(yaml.safe_dump(SPACE))
    node = space
    for key in keys:
        node = node[key]
    node.update(change)
    return str(yaml.safe_dump(space, sort_keys=False))


WRONG_FILES = {
    "no YAML": ("name: drill\nparameters: [\n", ["line 3", "this is not YAML"]),
    "key unknown": (changed("workload", windw={}), ["workload.windw", "unknown key", "did you mean window"]),
    "type wrong": (changed("parameters", "max-num-seqs", low="four"), ["parameters.max-num-seqs.low", "'four'"]),
    "range empty": (changed("parameters", "max-num-seqs", low=128), ["parameters.max-num-seqs", "128", "64"]),
    "default outside": (changed("parameters", "max-num-seqs", default=65), ["parameters.max-num-seqs", "65"]),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_wrong_space_file_is_named_with_key_and_value(either, case):
    text, said = WRONG_FILES[case]
    (either.folder / "space.yaml").write_text(text)
    assert_refused(either, either.run(*RUN), 2, "space.yaml", *said)
    assert not (either.folder / "autotune").exists()


def test_no_free_port(driver):
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        done = driver.run(*RUN, "--port-range", f"{port}-{port}")
    # What was said before is progress; the trial waits for a run that finds a port.
    assert done.exit_code == 4, done.said
    assert f"ports {port}-{port}" in done.err
    assert "--port-range" in done.err
    assert "Traceback" not in done.err
    assert not driver.left()


@pytest.mark.parametrize("case", ["Python missing", "Python without vLLM"])
def test_no_vllm(either, case):
    path = either.folder / "environment" / "bin" / "python"
    if case == "Python without vLLM":
        venv.create(path.parents[1], symlinks=True)
    done = either.run("run", "--space", "space.yaml", "--engine-python", str(path))
    assert_refused(either, done, 4, str(path), "--engine-python")
    assert not (either.folder / "autotune").exists()


def directory(path: Path) -> None:
    path.mkdir()


def garbage(path: Path) -> None:
    path.write_bytes(b"no database at all " * 100)


DATABASES = {
    "run in a folder": (RUN, directory, 4, ["cannot be opened or created", "hint: "]),
    "run on garbage": (RUN, garbage, 4, ["the file is no SQLite database", "hint: "]),
    "status in a folder": (("status",), directory, 2, ["no study history"]),
    "status on garbage": (("status",), garbage, 4, ["the file is no SQLite database", "hint: "]),
}


@pytest.mark.parametrize("case", DATABASES)
def test_a_database_that_cannot_be_used(either, case):
    command, spoil, code, said = DATABASES[case]
    spoil(either.folder / "history.db")
    assert_refused(either, either.run(*command, "--storage", "history.db"), code, "history.db", *said)


def test_a_database_below_a_file(inside):
    done = inside.run(*RUN, "--storage", "space.yaml/history.db")
    assert_refused(inside, done, 4, "space.yaml", "hint: ")
