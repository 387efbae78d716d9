"""The guard: a small process that owns the engine, so that no engine outlives the optimizer.

It is the engine's parent and a child subreaper: whatever the engine starts, even a process that leaves its session,
stays the guard's descendant and is found. It reads requests as JSON lines on stdin and answers on stdout. When stdin
ends, because the optimizer stopped or was killed, it ends everything it started and exits. Should the guard itself be
killed, `host/orphans.py` ends what is left; what both need, to find an engine's processes and to end them, stands here.

    {"launch": {"argv": […], "env": {…}, "log": PATH, "cpus": [0]}}  -> {"launched": {"pid": …, "start_ticks": …}}
    {"stop": {"grace_s": 5.0}}  -> {"stopped": {"exit_code": …, "term_s": …, "killed": […], "left": […]}}
    (the engine ends by itself)  -> {"exited": {"exit_code": …}}

Standard library only, one file: it also runs inside the engine's Python (`engine/vllm/inside/warm_spare.py`), which
may be an environment without our package, and there forks engines from a process that has imported vLLM already.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypedDict

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05
_KILL_WAIT_S = 4.0
_KILL_AGAIN_S = 0.5
_LEADERLESS_GRACE_S = 1.0
"""For processes whose leader is gone already: nobody is left who would end them in order."""

MARK_VARIABLE = "AUTOTUNE_GUARD"
"""In the environment of a guard and of all that it starts: a random word, another one for each guard."""
SCRATCH_PREFIX = "autotune-"
"""With the mark, the name of the folder that a guard and its engines have as TMPDIR."""

_libc = ctypes.CDLL(None, use_errno=True)

_own_fds: list[int] = []
"""Pipes of the guard that a child forked without exec would keep open: the optimizer must see them end with us."""


class Streams(TypedDict, total=False):
    """Files of a program's own: what it reads on stdin, else nothing; and its stderr, else the log takes that too."""

    stdin: str
    stderr: str


class Launch(Streams):
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
    with contextlib.ExitStack() as files:
        # Standard library only, and this is the plain way.
        stdin = files.enter_context(open(launch.get("stdin", os.devnull), "rb"))  # noqa: PTH123
        log = files.enter_context(open(launch["log"], "ab"))  # noqa: PTH123
        stderr = files.enter_context(open(launch["stderr"], "ab")) if "stderr" in launch else log  # noqa: PTH123
        child = subprocess.Popen(
            launch["argv"],
            env=launch["env"],
            stdin=stdin,
            stdout=log,
            stderr=stderr,
            preexec_fn=lambda: prepare_child(launch),  # safe: the guard has one thread
        )
    child.returncode = 0  # reaped by `Guard._reap`, which sees orphans of the engine too
    return child.pid


class ProcessKey(NamedTuple):
    """A process of this boot that no later one can be mistaken for: its id, and when it started in clock ticks."""

    pid: int
    start_ticks: int


class Seen(NamedTuple):
    """A living process, as one look at `/proc/PID/stat` found it. `name` is cut at 15 characters by the kernel."""

    pid: int
    start_ticks: int
    parent: int
    group: int
    session: int
    name: str

    @property
    def key(self) -> ProcessKey:
        """Who it is."""
        return ProcessKey(self.pid, self.start_ticks)


def look(pid: int) -> Seen | None:
    """The process, or None when it is gone.

    A zombie is gone: it holds nothing any more, and in a container without an init nobody may ever collect it. It is
    not while threads of it live on, as they do when the GPU's driver will not let go of one of them.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            head, _, tail = file.read().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = tail.split()
    if fields[0] in "ZX" and int(fields[17]) < 2:
        return None
    return Seen(pid, int(fields[19]), int(fields[1]), int(fields[2]), int(fields[3]), head.partition("(")[2])


def look_around() -> dict[int, Seen]:
    """All living processes, by pid."""
    found = (look(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208
    return {process.pid: process for process in found if process is not None}


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot (field 22 of `/proc/PID/stat`); 0 when it is gone."""
    process = look(pid)
    return 0 if process is None else process.start_ticks


def with_descendants(seen: Mapping[int, Seen], roots: Collection[int]) -> set[int]:
    """The roots and all below them."""
    found = set(roots)
    while True:
        more = {process.pid for process in seen.values() if process.parent in found} - found
        if not more:
            return found
        found |= more


def environment_of(pid: int) -> dict[str, str]:
    """Variables a process was started with; none when it is gone or another user's.

    A program that overwrites them, as setproctitle does unless `SPT_NOENV` is set, hides them.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            pairs = file.read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def processes_of_engine(guard: ProcessKey, leader: ProcessKey | None, mark: str) -> list[Seen]:
    """Living processes of a guard's engine, without guard and caller; never one that merely has a pid of theirs.

    Ours is what descends from the guard or the engine's leader, shares the session of a leader that lives, or carries
    the mark and is no older than the guard; and what descends from any of these. Without its leader a session proves
    nothing, for its number may be another's by now.
    """
    seen = look_around()
    ours = {key.pid for key in (guard, leader) if key is not None and key.pid in seen and seen[key.pid].key == key}
    if leader is not None and leader.pid in ours:
        ours |= {process.pid for process in seen.values() if process.session == leader.pid}
    ours = with_descendants(seen, ours)
    others = [p.pid for p in seen.values() if p.pid not in ours and p.start_ticks >= guard.start_ticks]
    # A process that cannot be ended may also block whoever reads its environment: those known are not asked.
    marked = [pid for pid in others if mark and environment_of(pid).get(MARK_VARIABLE) == mark]
    ours = with_descendants(seen, ours.union(marked)) - {os.getpid()}
    return [process for pid, process in sorted(seen.items()) if pid in ours and process.key != guard]


def send(process: Seen, number: int) -> None:
    """Signal that very process, or nobody when it is gone or its pid another's. One that may not be signalled stays."""
    if start_ticks(process.pid) == process.start_ticks:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def remove_scratch(folder: str | None, mark: str) -> None:
    """Remove a guard's folder for temporary files with all in it; what cannot be removed stays, as in any TMPDIR."""
    if folder is not None and folder.rpartition("/")[2] == f"{SCRATCH_PREFIX}{mark}":
        shutil.rmtree(folder, ignore_errors=True)


class Ended(NamedTuple):
    """How processes went: patience in seconds, those that had to be killed, and those that survived even that."""

    term_s: float
    killed: list[Seen]
    left: list[Seen]


def end(find: Callable[[], list[Seen]], leader: ProcessKey | None, grace_s: float) -> Ended:
    """SIGTERM to the leader and then to what outlives it; SIGKILL for what is left, again and again for 4 s.

    Args:
        find: Looks for the processes that are to end; asked until it finds none and all that it ever found are gone.
        leader: Gets SIGTERM first, to end the others in order; None when nobody leads them.
        grace_s: Patience after SIGTERM; at most 1 s once the leader is gone.
    """
    find = _remembering(find)
    begun_s = time.monotonic()
    left = _ask_to_end(find, leader, begun_s + grace_s)
    term_s = time.monotonic() - begun_s
    killed: dict[int, Seen] = {}
    deadline_s = time.monotonic() + _KILL_WAIT_S
    while left and time.monotonic() < deadline_s:
        killed.update((process.pid, process) for process in left)
        if leader is not None and any(process.group == leader.pid for process in left):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(leader.pid, signal.SIGKILL)  # in one step, so that none of them can fork meanwhile
        for process in left:
            send(process, signal.SIGKILL)
        left = _until_gone(find, time.monotonic() + _KILL_AGAIN_S)
    return Ended(term_s, list(killed.values()), left)


def _remembering(find: Callable[[], list[Seen]]) -> Callable[[], list[Seen]]:
    """What `find` finds, and what it once found and still lives.

    A process that is ending shows no environment any more, hence no mark, well before the kernel closes its files
    and with them gives back the GPU's memory.
    """
    known: dict[ProcessKey, Seen] = {}

    def find_all() -> list[Seen]:
        found = {process.key: process for process in find()}
        known.update(found)
        return [known[key] for key in sorted(known) if key in found or start_ticks(key.pid) == key.start_ticks]

    return find_all


def _ask_to_end(find: Callable[[], list[Seen]], leader: ProcessKey | None, deadline_s: float) -> list[Seen]:
    asked: set[ProcessKey] = set()
    leaderless_since_s: float | None = None
    while True:
        left = find()
        now_s = time.monotonic()
        led = any(process.key == leader for process in left)
        if not led:
            leaderless_since_s = now_s if leaderless_since_s is None else leaderless_since_s
            deadline_s = min(deadline_s, leaderless_since_s + _LEADERLESS_GRACE_S)
        if not left or now_s >= deadline_s:
            return left
        for process in left:
            if process.key not in asked and (process.key == leader or not led):
                send(process, signal.SIGTERM)
                asked.add(process.key)
        time.sleep(_POLL_S)


def _until_gone(find: Callable[[], list[Seen]], deadline_s: float) -> list[Seen]:
    while True:
        left = find()
        if not left or time.monotonic() >= deadline_s:
            return left
        time.sleep(_POLL_S)


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
        self._key = ProcessKey(os.getpid(), start_ticks(os.getpid()))
        self._mark = os.environ.get(MARK_VARIABLE, "")
        self._leader: ProcessKey | None = None
        """The engine's first process, living or dead, until the engine was stopped."""
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
        if not self._end_engine(grace_s=3.0)["left"]:
            remove_scratch(os.environ.get("TMPDIR"), self._mark)

    def _handle(self, request: dict[str, Any]) -> None:
        if "launch" in request:
            self._exit_code = None
            try:
                pid = self._spawn(request["launch"])
            except (OSError, subprocess.SubprocessError) as error:  # the latter: `prepare_child` failed
                self._answer({"launch_failed": {"error": str(error)}})
                return
            self._leader = ProcessKey(pid, start_ticks(pid))
            self._answer({"launched": self._leader._asdict()})
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
            if self._leader is not None and pid == self._leader.pid and self._exit_code is None:
                self._exit_code = os.waitstatus_to_exitcode(status)
                self._answer({"exited": {"exit_code": self._exit_code}})

    def _end_engine(self, grace_s: float) -> dict[str, Any]:
        """End the engine with all that it started."""
        ended = end(self._find, self._leader, grace_s)
        if not ended.left:
            self._leader = None
        return {
            "exit_code": self._exit_code,
            "term_s": ended.term_s,
            "killed": [process.pid for process in ended.killed],
            "left": [process.pid for process in ended.left],
        }

    def _find(self) -> list[Seen]:
        seen = look_around()
        below = with_descendants(seen, {self._key.pid}) - {self._key.pid}
        found = [seen[pid] for pid in sorted(below)] or processes_of_engine(self._key, self._leader, self._mark)
        self._reap()  # after the look, which passes over zombies: the exit code of the last one must not be missed
        return found

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
