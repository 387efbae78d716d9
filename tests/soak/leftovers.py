"""What an engine may leave behind, looked for past our own code: processes, port, files, descriptors."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil

TRIAL_VARIABLE = "AUTOTUNE_TRIAL"


def processes_left(marker: str, *, leader: int | None, guard: int) -> list[str]:
    """Living processes of one launch: below the guard, in the leader's session, or with its mark anywhere."""
    wanted = f"{TRIAL_VARIABLE}={marker}".encode()
    found: dict[int, str] = {}
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(guard).children(recursive=True):
            found[child.pid] = "below the guard"
    for pid, folder in _processes():
        if leader is not None and _session(folder) == leader:
            found[pid] = "in the engine's session"
        elif wanted in _words(folder / "environ"):
            found[pid] = "by its environment"
        elif marker.encode() in _words(folder / "cmdline"):
            found[pid] = "by its command line"
    return [f"process {pid} {how}" for pid, how in found.items() if not _is_zombie(pid)]


def port_left(port: int) -> list[str]:
    """Whether somebody listens on an engine's port, or it cannot be bound as the next engine would."""
    with closing(socket.socket()) as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            return [f"port {port} answers"]
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return [f"port {port} cannot be bound: {error.strerror}"]
    return []


def open_fds(pid: int | None = None) -> int:
    """File descriptors of a process; of this one those that are in use, garbage collected."""
    if pid is None:
        gc.collect()
    return len(os.listdir(f"/proc/{pid or 'self'}/fd"))  # noqa: PTH208 (names are enough)


def shared_memory() -> set[str]:
    """Segments of POSIX shared memory on this host."""
    return {path.name for path in Path("/dev/shm").iterdir()}  # noqa: S108 (looked at, not written)


def _processes() -> Iterator[tuple[int, Path]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            yield int(entry.name), entry


def _words(file: Path) -> list[bytes]:
    with suppress(OSError):
        return file.read_bytes().split(b"\0")
    return []


def _session(folder: Path) -> int | None:
    with suppress(OSError, ProcessLookupError):
        return int((folder / "stat").read_text().rpartition(")")[2].split()[3])
    return None


def _is_zombie(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True
