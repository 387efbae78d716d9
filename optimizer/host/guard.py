"""The guard: a small process that owns the engine, so that no engine outlives the optimizer.

It is the engine's parent and a child subreaper: whatever the engine starts, even a process that leaves its session,
stays the guard's descendant and is found. It reads requests as JSON lines on stdin and answers on stdout. When stdin
ends, because the optimizer stopped or was killed, it ends everything it started and exits.

    {"launch": {"argv": […], "env": {…}, "log": PATH, "cpus": [0]}}  -> {"launched": {"pid": …, "start_ticks": …}}
    {"stop": {"grace_s": 5.0}}  -> {"stopped": {"exit_code": …, "term_s": …, "killed": […], "left": […]}}
    (the engine ends by itself)  -> {"exited": {"exit_code": …}}

Standard library only, one file: it also runs inside the engine's Python (`engine/vllm/inside/warm_spare.py`), which
may be an environment without our package, and there forks engines from a process that has imported vLLM already.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TypedDict

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05
_KILL_WAIT_S = 4.0

_libc = ctypes.CDLL(None, use_errno=True)

_own_fds: list[int] = []
"""Pipes of the guard that a child forked without exec would keep open: the optimizer must see them end with us."""


class Launch(TypedDict):
    """How to start an engine: its argv, whole environment, log file, and the CPUs it may use (empty: all)."""

    argv: list[str]
    env: dict[str, str]
    log: str
    cpus: list[int]


Spawn = Callable[[Launch], int]
"""Starts an engine as the leader of its own session and returns its pid."""


def prepare_child(launch: Launch) -> None:
    """In the new child: own session, own CPUs, no pipe of ours, and SIGTERM from the kernel should the guard die."""
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if launch["cpus"]:
        os.sched_setaffinity(0, launch["cpus"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    while _own_fds:
        os.close(_own_fds.pop())


def spawn_program(launch: Launch) -> int:
    """Start argv as a fresh program."""
    with open(launch["log"], "ab") as log:  # noqa: PTH123 (standard library only, and this is the plain way)
        child = subprocess.Popen(
            launch["argv"],
            env=launch["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: prepare_child(launch),  # safe: the guard has one thread
        )
    child.returncode = 0  # reaped by `Guard._reap`, which sees orphans of the engine too
    return child.pid


def _stat(pid: int) -> list[str]:
    """Fields of `/proc/PID/stat` after the command name: state, ppid, pgrp, session, …; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot (field 22 of `/proc/PID/stat`); 0 when it is gone.

    A zombie is gone: it holds nothing any more, and in a container without an init nobody may ever collect it.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else 0


def descendants(root: int) -> list[int]:
    """Living processes below `root`, zombies left out."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields and fields[0] != "Z":
                parents[int(entry)] = int(fields[1])
    found = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return sorted(found - {root})
        found |= more


def die_with_parent() -> None:
    """For a guard that takes its time to start: the optimizer's death ends it by SIGTERM, until it serves.

    A serving guard ignores SIGTERM: it sees stdin end, and must live to end the engine.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Guard:
    """Serves the requests of one optimizer; holds at most one engine at a time."""

    def __init__(self, spawn: Spawn, requests: int, answers: int) -> None:
        self._spawn = spawn
        self._requests = requests
        self._answers = answers
        self._leader: int | None = None
        self._exit_code: int | None = None

    def serve(self) -> None:
        """Answer requests until stdin ends; then leave nothing behind."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _own_fds.extend((wake_read, wake_write, self._requests, self._answers))
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        pending = b""
        while True:
            readable, _, _ = select.select([self._requests, wake_read], [], [])
            if wake_read in readable:
                os.read(wake_read, 4096)
                self._reap()
            if self._requests in readable:
                data = os.read(self._requests, 65536)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._handle(json.loads(line))
        self._end_engine(grace_s=3.0)

    def _handle(self, request: dict[str, Any]) -> None:
        if "launch" in request:
            self._exit_code = None
            try:
                self._leader = self._spawn(request["launch"])
            except (OSError, subprocess.SubprocessError) as error:  # the latter: `prepare_child` failed
                self._answer({"launch_failed": {"error": str(error)}})
                return
            self._answer({"launched": {"pid": self._leader, "start_ticks": start_ticks(self._leader)}})
        elif "stop" in request:
            self._answer({"stopped": self._end_engine(float(request["stop"]["grace_s"]))})

    def _reap(self) -> None:
        """Collect every dead child: the engine's leader, and orphans that fell to us as subreaper."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._leader:
                self._leader = None
                self._exit_code = os.waitstatus_to_exitcode(status)
                self._answer({"exited": {"exit_code": self._exit_code}})

    def _end_engine(self, grace_s: float) -> dict[str, Any]:
        """SIGTERM to the leader, a bounded wait until all is gone, then SIGKILL for whatever is left."""
        begun = time.monotonic()
        if self._leader is not None:
            os.kill(self._leader, signal.SIGTERM)
        left = self._wait_gone(grace_s if self._leader is not None else 0.5)
        term_s = time.monotonic() - begun
        killed = list(left)
        deadline = time.monotonic() + _KILL_WAIT_S
        while left and time.monotonic() < deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            left = self._wait_gone(0.5)
        self._leader = None
        return {"exit_code": self._exit_code, "term_s": term_s, "killed": killed, "left": left}

    def _wait_gone(self, limit_s: float) -> list[int]:
        """Wait until no descendant lives; returns those that still do at the limit."""
        deadline = time.monotonic() + limit_s
        while True:
            left = descendants(os.getpid())
            self._reap()  # after the look, which passes over zombies: the exit code of the last one must not be missed
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(_POLL_S)

    def _answer(self, message: dict[str, Any]) -> None:
        try:
            os.write(self._answers, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:  # the optimizer is gone; stdin says so too, and ends the loop
            return


def run(spawn: Spawn = spawn_program) -> None:
    """Become the guard: take stdin and stdout for the protocol, and serve until the optimizer is gone."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    requests, answers = os.dup(0), os.dup(1)
    for fd in (requests, answers):
        os.set_inheritable(fd, False)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    guard = Guard(spawn, requests, answers)
    guard._answer({"ready": {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}})
    guard.serve()


if __name__ == "__main__":
    run()
    sys.exit(0)
