"""Drives the command line inside the test's own process, which spares each command the start of a Python.

What runs is `python -m optimizer`, from its entry on: it ends with SystemExit, and what it and its children write to
the two streams is what a person would see. An exception that would leave a traceback fails the test.
"""

from __future__ import annotations

import logging
import os
import resource
import runpy
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.driving import LIMIT_S, Driver, Finished


@dataclass
class DriverInside(Driver):
    """A driver whose `run` starts no process. What a command leaves changed in this one fails the test.

    Attributes:
        captured: Of this test: the file descriptors of stdout and stderr.
    """

    captured: pytest.CaptureFixture[str] | None = None

    def run(self, *words: str, limit_s: float = LIMIT_S, **environ: str) -> Finished:
        """A command from start to end; its limit is that of the test."""
        assert self.captured is not None
        self.captured.readouterr()
        variables = self._environment(environ)
        with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ, variables, clear=True):
            patch.chdir(self.folder)
            with _nothing_left_changed():
                code = _exit_code_of(words)
        out, err = self.captured.readouterr()
        return Finished(code, out, err)


def _exit_code_of(words: tuple[str, ...]) -> int:
    """What `python -m optimizer` ends with."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr("sys.argv", ["-m", *words])
        # To be put back: the command has uncaught exceptions reported in its own way.
        patch.setattr("sys.excepthook", sys.excepthook)
        runpy.run_module("optimizer", run_name="__main__", alter_sys=True)
    code = end.value.code
    assert code is None or isinstance(code, int), f"it ended with {code!r}"
    return code or 0


@contextmanager
def _nothing_left_changed() -> Iterator[None]:
    """Fails when a command leaves behind what the next one would meet."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    before, threads = _state(), _threads()
    try:
        yield
        assert _state() == before
        assert not _threads() - threads
    finally:
        # A load client raises it for good: a process of its own has no use for the lower limit afterwards.
        resource.setrlimit(resource.RLIMIT_NOFILE, (files[0], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for number, handler in before["signals"].items():
            signal.signal(number, handler)


def _state() -> dict[str, Any]:
    root = logging.getLogger()
    return {
        "folder": Path.cwd(),
        "environment": dict(os.environ),
        "signals": {number: signal.getsignal(number) for number in _CAUGHT},
        "logging": (root.level, list(root.handlers), logging.root.manager.disable),
        "processors": os.sched_getaffinity(0),
        "umask": _umask(),
    }


def _threads() -> set[threading.Thread]:
    """Those that would keep a process from ending."""
    return {thread for thread in threading.enumerate() if not thread.daemon}


_CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
