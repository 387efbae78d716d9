"""What all tests share: what a test needs of the machine, REQUIRE_ALL, and a closing list of what was left out."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres_server import postgres_is_there, postgres_server

# `nohup` ignores SIGHUP and a shell's `&` SIGINT, and with it every process that a test sends one.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# NumPy's BLAS has a thread for each core, and they spin: the small matrices of a search take three times the CPU time,
# and minutes on a busy machine. Set before NumPy is loaded; what the tests start inherits it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

REQUIRE_ALL = os.environ.get("REQUIRE_ALL", "") not in ("", "0")

# A test that fails on a busy machine says nothing: how long things take is for the benchmarks. Where everything must
# pass, every run has the same examples, so that a change is not refused for what it did not touch; new ones are looked
# for in all other runs.
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=REQUIRE_ALL
)
settings.load_profile("untimed")


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome on PATH."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "e2e": (lambda: importlib.util.find_spec("vllm") is not None, "vLLM is not installed in this environment"),
    "browser": (lambda: find_chromium() is not None, "there is no chromium on PATH"),
    "postgres": (postgres_is_there, "PostgreSQL is not installed on this machine"),
}
"""Marker to a probe of this machine, and what to say when it finds nothing."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, (present, reason) in NEEDS.items():
        if item.get_closest_marker(marker) and not present():
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _refuse_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _refuse_skip((yield))


def _refuse_skip(report: Report) -> Report:
    """Under REQUIRE_ALL a skip is a failure; an expected failure (xfail) is none."""
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_ALL is set, and this would be skipped: {_reason(report)}"
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if not hasattr(r, "wasxfail")]
    deselected = len(terminalreporter.stats.get("deselected", []))
    terminalreporter.section("left out")
    for reason, count in Counter(_reason(report) for report in skipped).most_common():
        terminalreporter.line(f"{count} skipped: {reason}")
        for report in skipped:
            if _reason(report) == reason:
                terminalreporter.line(f"    {report.nodeid}")
    if deselected:
        terminalreporter.line(f"{deselected} not selected by -m or -k")
    if not skipped and not deselected:
        terminalreporter.line("nothing")


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where all runs of a session keep their ledger, so that none reads or writes a user's, or another session's."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_STATE_DIR", str(folder))
        yield folder


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser; for tests marked `browser`."""
    path = find_chromium()
    if path is None:
        pytest.skip(NEEDS["browser"][1])
    return path


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a PostgreSQL database; for tests marked `postgres`."""
    if not postgres_is_there():
        pytest.skip(NEEDS["postgres"][1])
    with postgres_server() as url:
        yield url


@pytest.fixture
def tmp_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is both HOME and the working directory, so that no test reads or writes a user's files."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(home)
    return home
