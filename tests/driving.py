"""Drives the command line as a person does: real processes, real signals, and a look at what is left behind.

Every process started here carries a mark of its own in its environment, which guards and engines inherit. By it they
are found in `/proc`, whatever they call themselves and whoever their parent is.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import secrets
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

TRIAL_VARIABLE = "AUTOTUNE_TRIAL"
"""What the product puts into the environment of every process of an engine."""
GONE_WITHIN_S = 10.0
"""How long an engine may outlive its optimizer."""
LIMIT_S = 120.0
"""For anything that is waited for; a loaded machine takes its time."""
_MARK = "AUTOTUNE_DRIVEN_BY"
_POLL_S = 0.02
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    exit_code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Everything a person saw."""
        return f"{self.out}\n{self.err}"


@dataclass(frozen=True)
class Left:
    """A process that carries the driver's mark."""

    pid: int
    command: str
    trial: str | None
    """Study, trial and attempt, when it belongs to an engine."""


class Running:
    """A command under way. What it writes to stderr (or to its terminal) is read as it comes."""

    def __init__(self, process: subprocess.Popen[bytes], source: int, out: Path | None) -> None:
        self.process = process
        self._source = source
        self._out = out
        self._heard = b""
        self._news = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def heard(self) -> str:
        """What it said so far, escape codes included."""
        with self._news:
            return self._heard.decode(errors="replace")

    @property
    def text(self) -> str:
        """The same without escape codes."""
        return _ESCAPES.sub("", self.heard)

    def wait_for(self, words: str, *, limit_s: float = LIMIT_S) -> None:
        """Returns as soon as it has said so; fails when it ends without."""
        deadline_s = time.monotonic() + limit_s
        while words not in self.text:
            with self._news:
                left_s = deadline_s - time.monotonic()
                assert left_s > 0, f"{words!r} was not said within {limit_s:.0f} s:\n{self.text}"
                ended = not self._listener.is_alive()
                self._news.wait(min(left_s, 0.1))
            assert not ended or words in self.text, f"it ended without saying {words!r}:\n{self.text}"

    def type(self, keys: str) -> None:
        """Presses keys on its terminal."""
        os.write(self._source, keys.encode())

    def send(self, number: signal.Signals) -> None:
        """To this process alone."""
        self.process.send_signal(number)

    def send_to_group(self, number: signal.Signals) -> None:
        """To its process group, which it leads."""
        os.killpg(self.process.pid, number)

    def finish(self, *, limit_s: float = LIMIT_S) -> Finished:
        """Waits for the end."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {limit_s:.0f} s:\n{self.text}") from None
        self._listener.join(limit_s)
        return Finished(code, "" if self._out is None else self._out.read_text(), self.heard)

    def _listen(self) -> None:
        # A terminal whose last user is gone reports an error instead of an end.
        with suppress(OSError):
            while piece := os.read(self._source, 65536):
                self._hear(piece)
        self._hear(b"")

    def _hear(self, piece: bytes) -> None:
        with self._news:
            self._heard += piece
            self._news.notify_all()


@dataclass
class Driver:
    """Runs commands in one folder.

    Attributes:
        folder: Working directory of every command.
        environ: On top of the inherited environment.
    """

    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: secrets.token_hex(12))
    _started: list[Running] = field(default_factory=list)
    _pipes: list[IO[bytes] | int] = field(default_factory=list)

    def run(self, *words: str, limit_s: float = LIMIT_S, **environ: str) -> Finished:
        """A command from start to end."""
        return self.start(*words, **environ).finish(limit_s=limit_s)

    def json(self, *words: str) -> Any:
        """What a command prints as JSON."""
        done = self.run(*words)
        assert done.exit_code == 0, done.said
        return json.loads(done.out)

    def start(self, *words: str, **environ: str) -> Running:
        """Starts a command with its output in pipes, as the leader of its own session and group."""
        return self._start(self._argv(words), environ)

    def shell(self, text: str) -> Running:
        """Starts what a person pastes into a shell."""
        return self._start(["bash", "-c", text], {})

    def _start(self, argv: list[str], environ: Mapping[str, str]) -> Running:
        out = self.folder.parent / f"{self.folder.name}-out-{len(self._started)}.txt"
        with out.open("wb") as stdout:
            process = subprocess.Popen(
                argv,
                cwd=self.folder,
                env=self._environment(environ),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        assert process.stderr is not None
        self._pipes.append(process.stderr)
        return self._keep(Running(process, process.stderr.fileno(), out))

    def start_on_terminal(self, *words: str, columns: int = 80, **environ: str) -> Running:
        """Starts a command on a terminal of its own, which sends SIGINT on Ctrl-C."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        process = subprocess.Popen(
            ["setsid", "--ctty", *self._argv(words)],
            cwd=self.folder,
            env=self._environment({"TERM": "xterm-256color", **environ}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._pipes.append(ours)
        return self._keep(Running(process, ours, None))

    def left(self) -> list[Left]:
        """Living processes that carry the mark: optimizers, guards, engines."""
        wanted = f"{_MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    variables = (entry / "environ").read_bytes().split(b"\0")
                    if wanted in variables and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                        found.append(_left(entry, variables))
        return found

    def engines(self) -> list[Left]:
        """Living processes of engines."""
        return [one for one in self.left() if one.trial is not None]

    def wait_until(self, true: Callable[[], bool], what: str, *, limit_s: float = GONE_WITHIN_S) -> float:
        """Polls what nothing tells of; returns the seconds that it took."""
        begun_s = time.monotonic()
        while not true():
            assert time.monotonic() - begun_s < limit_s, f"{what}: not within {limit_s:.0f} s; left: {self.left()}"
            time.sleep(_POLL_S)
        return time.monotonic() - begun_s

    def wait_until_all_gone(self) -> float:
        """Seconds until no process of ours is left; fails beyond the limit that is promised."""
        return self.wait_until(lambda: not self.left(), "processes are left")

    def close(self) -> None:
        """Kills whatever of it still lives."""
        deadline_s = time.monotonic() + GONE_WITHIN_S
        while (survivors := self.left()) and time.monotonic() < deadline_s:
            for one in survivors:
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            for running in self._started:
                running.process.poll()
            time.sleep(_POLL_S)
        for running in self._started:
            running.finish(limit_s=GONE_WITHIN_S)
        for pipe in self._pipes:
            os.close(pipe) if isinstance(pipe, int) else pipe.close()

    def _argv(self, words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "optimizer", *words]

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        # What the caller's shell forces on output would hide what a person sees by default.
        plain = {name: value for name, value in os.environ.items() if name not in _OUTPUT_VARIABLES}
        return {**plain, **self.environ, **more, _MARK: self.mark}

    def _keep(self, running: Running) -> Running:
        self._started.append(running)
        return running


_OUTPUT_VARIABLES = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def _left(entry: Path, variables: list[bytes]) -> Left:
    prefix = f"{TRIAL_VARIABLE}=".encode()
    trials = [variable.removeprefix(prefix).decode() for variable in variables if variable.startswith(prefix)]
    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return Left(int(entry.name), command, trials[0] if trials else None)
