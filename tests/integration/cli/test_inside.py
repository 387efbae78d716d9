"""What the tests that start no process rest on: it is the program that runs, and it leaves nothing to the next test."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.drill import RUN, SPEED
from tests.integration.cli.inside import DriverInside


def test_a_process_of_its_own_says_the_same(driver, capfd):
    words = (*RUN, "--space", "tiny-cpuu")
    apart = driver.run(*words)
    assert apart.exit_code == 2, apart.said
    assert DriverInside(driver.folder, SPEED, captured=capfd).run(*words) == apart


def test_nothing_is_left_of_a_command(inside):
    before = dict(os.environ), Path.cwd(), sys.argv, sys.excepthook, sys.modules["__main__"]
    assert inside.run("status").exit_code == 2
    assert (dict(os.environ), Path.cwd(), sys.argv, sys.excepthook, sys.modules["__main__"]) == before


def lasting_thread(release: threading.Event) -> None:
    threading.Thread(target=release.wait, name="lasting").start()


@pytest.mark.parametrize(
    "leave",
    [
        lambda release: os.environ.update(LEFT="behind"),
        lambda release: os.chdir("/"),
        lambda release: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        lasting_thread,
    ],
    ids=["environment", "folder", "signal", "thread"],
)
def test_what_a_command_leaves_behind_fails_the_test(inside, monkeypatch, leave):
    release = threading.Event()

    def command() -> None:
        leave(release)
        sys.exit(0)

    monkeypatch.setattr("optimizer.cli.main.main", command)
    with pytest.raises(AssertionError):
        inside.run("status")
    release.set()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
    assert "LEFT" not in os.environ


def test_an_exception_that_nobody_caught_fails_the_test(inside, monkeypatch):
    def command() -> None:
        raise KeyError("tokens")

    monkeypatch.setattr("optimizer.cli.main.main", command)
    with pytest.raises(KeyError):
        inside.run("status")
