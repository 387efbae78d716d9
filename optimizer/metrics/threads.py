"""CPU of each thread of engine and client, by the role of its process.

A server whose GPU idles is often held up by one thread: a Python process runs one thread at a time, so its busiest
thread near one whole core is a limit, however many cores are free. In vLLM the API server's main thread speaks HTTP,
turns tokens into text and streams them; EngineCore's schedules and, with one GPU, launches the kernels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from optimizer.core.measurement import RoleUse, ThreadUse
from optimizer.host.process_tree import tree

API_SERVER, ENGINE_CORE, WORKER, CLIENT, OTHER = ROLES = ("api_server", "engine_core", "worker", "client", "other")
"""What a process is for. `other`: the coordinator of data parallelism, resource trackers, compilers."""

_ROLE_OF_TITLE = {"APIServer": API_SERVER, "EngineCore": ENGINE_CORE, "Worker": WORKER}
_TITLE = "VLLM::"
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_REFRESH_EVERY = 10
"""Processes are looked for at every tenth sample and at marks; that costs more than reading their threads."""

ThreadKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """CPU seconds of one thread so far, and seconds that it could have run but had no core (None: not told)."""

    cpu_s: float
    waited_s: float | None


@dataclass(frozen=True, slots=True)
class ThreadSnapshot:
    """Every thread at one moment.

    Attributes:
        at_s: On the monotonic clock.
        threads: (pid, thread id) to its times.
    """

    at_s: float
    threads: Mapping[ThreadKey, ThreadTimes]


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    role: str
    title: str


class ThreadMeter:
    """Reads the CPU of all threads. Not to be used by two threads at once.

    Args:
        engine_pids: Gives the engine's leaders; their descendants are found from them.
        client_pids: Gives the processes that make the load, without descendants. None takes this process and its
            children that run Python, but for the guard, above the engine.
    """

    def __init__(
        self, engine_pids: Callable[[], Iterable[int]], client_pids: Callable[[], Iterable[int]] | None = None
    ) -> None:
        self._engine_pids = engine_pids
        self._client_pids = client_pids
        self._processes: dict[int, _Process] = {}
        self._names: dict[ThreadKey, str] = {}
        self._reads = 0

    def read(self, now_s: Callable[[], float], *, fresh: bool = False) -> ThreadSnapshot:
        """All threads now.

        Args:
            now_s: The monotonic clock.
            fresh: Look for new processes first.
        """
        if fresh or self._reads % _REFRESH_EVERY == 0:
            self._find_processes()
        self._reads += 1
        at_s = now_s()
        threads: dict[ThreadKey, ThreadTimes] = {}
        for pid in self._processes:
            folder = f"/proc/{pid}/task"
            for name in _listed(folder):
                times = _times(f"{folder}/{name}")
                if times is not None:
                    threads[pid, int(name)] = times
        return ThreadSnapshot(at_s, threads)

    def use(self, before: ThreadSnapshot, after: ThreadSnapshot) -> tuple[RoleUse, ...]:
        """What each role used between two snapshots, in the order of `ROLES`; roles without a process are left out.

        A thread that ended within counts with nothing, and so does a process that was not known before: it may be old.
        A thread that was born in a known one counts from its birth.
        """
        elapsed_s = after.at_s - before.at_s
        if elapsed_s <= 0.0:
            return ()
        used: dict[str, list[ThreadUse]] = {}
        known = {pid for pid, _ in before.threads}
        for key, now in after.threads.items():
            process = self._processes.get(key[0])
            if process is None or process.pid not in known:
                continue
            was = before.threads.get(key, ThreadTimes(0.0, 0.0))
            waited_s = None if now.waited_s is None or was.waited_s is None else now.waited_s - was.waited_s
            thread = ThreadUse(
                process.title,
                process.pid,
                self._name(key),
                max(0.0, now.cpu_s - was.cpu_s) / elapsed_s,
                None if waited_s is None else max(0.0, waited_s) / elapsed_s,
            )
            used.setdefault(process.role, []).append(thread)
        return tuple(_role_use(role, used[role]) for role in ROLES if role in used)

    def allowed_cpus(self) -> int | None:
        """How many cores the engine's processes may run on; None when there is none."""
        cores: set[int] = set()
        for process in self._processes.values():
            if process.role != CLIENT:
                try:
                    cores |= os.sched_getaffinity(process.pid)
                except (ProcessLookupError, PermissionError):
                    continue
        return len(cores) or None

    def _find_processes(self) -> None:
        found: dict[int, _Process] = {}
        for leader in self._engine_pids():
            family = [(process, *_title(process)) for process in tree(leader)]
            untitled_core = all(role != ENGINE_CORE for _, role, _ in family)
            several_servers = any(role == API_SERVER for _, role, _ in family)
            for process, role, title in family:
                if process.pid == leader and role == OTHER and not several_servers:
                    role, title = API_SERVER, "API server"
                elif role == OTHER and untitled_core and _is_child_of(process, leader) and not _is_helper(process):
                    role, title = ENGINE_CORE, "EngineCore"
                found[process.pid] = _Process(process.pid, role, title)
        clients = _own_family(found) if self._client_pids is None else self._client_pids()
        for pid in clients:
            found[pid] = _Process(pid, CLIENT, "client" if pid == os.getpid() else "load process")
        self._processes = found

    def _name(self, key: ThreadKey) -> str:
        pid, thread = key
        if pid == thread:
            return "main"
        if key not in self._names:
            self._names[key] = _text(f"/proc/{pid}/task/{thread}/comm").strip() or f"thread {thread}"
        return self._names[key]


def busiest(roles: Sequence[RoleUse], role: str) -> ThreadUse | None:
    """The thread of a role that used most CPU; None where the role has no process."""
    return next((use.busiest for use in roles if use.role == role), None)


def _role_use(role: str, threads: list[ThreadUse]) -> RoleUse:
    return RoleUse(
        role=role,
        processes=len({thread.pid for thread in threads}),
        cores=sum(thread.cores for thread in threads),
        busiest=max(threads, key=lambda thread: thread.cores),
    )


def _title(process: psutil.Process) -> tuple[str, str]:
    """Role and title: vLLM names its processes `VLLM::EngineCore_DP0` and the like, where setproctitle is installed."""
    title = _text(f"/proc/{process.pid}/cmdline").partition("\0")[0].strip()
    if not title.startswith(_TITLE):
        title = _text(f"/proc/{process.pid}/comm").strip()
    for word, role in _ROLE_OF_TITLE.items():
        # The kernel's own name is cut to 15 characters: `VLLM::EngineCor`.
        if title.startswith((_TITLE + word)[:15]):
            return role, title
    return OTHER, title


def _own_family(engine: Container[int]) -> list[int]:
    """This process and the load processes that it started: children of its own kind without an engine below them."""
    this = psutil.Process()
    family = [this.pid]
    for child in this.children():
        below = {process.pid for process in tree(child.pid)}
        if not any(pid in engine for pid in below) and _program(child.pid) == _program(this.pid):
            family.append(child.pid)
    return family


def _program(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 -- a string is compared
    except OSError:
        return None


def _is_child_of(process: psutil.Process, leader: int) -> bool:
    try:
        return int(process.ppid()) == leader
    except psutil.NoSuchProcess:
        return False


def _is_helper(process: psutil.Process) -> bool:
    """Python's resource tracker, which is a child of the leader as EngineCore is."""
    return "resource_tracker" in _text(f"/proc/{process.pid}/cmdline")


def _times(folder: str) -> ThreadTimes | None:
    """From `schedstat` (nanoseconds on a core, nanoseconds runnable without one), else from `stat` (clock ticks)."""
    exact = _text(f"{folder}/schedstat").split()
    if len(exact) >= 2:
        return ThreadTimes(int(exact[0]) / 1e9, int(exact[1]) / 1e9)
    # The name in brackets may hold spaces and brackets of its own; proc(5), fields 14 and 15.
    fields = _text(f"{folder}/stat").rpartition(")")[2].split()
    if len(fields) < 13:
        return None
    return ThreadTimes((int(fields[11]) + int(fields[12])) * _TICK_S, None)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 -- names alone are wanted, several hundred times a second
    except OSError:
        return []


def _text(path: str) -> str:
    """A small file of the kernel's; empty when its process or thread is gone, or the kernel has no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 4096).decode("utf-8", errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
