"""A process with all below it: the CPU time it has used, and whether it alone listens on a port."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

_PROC = Path("/proc")
_LISTENING = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def tree(pid: int) -> list[psutil.Process]:
    """The process and its descendants, as far as they live."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def tree_cpu_s(pid: int) -> float:
    """CPU seconds that the process, its living descendants and those they have collected used so far.

    It falls when a descendant ends that nobody collects; compare two readings by their distance.
    """
    total = 0.0
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += sum(process.cpu_times()[:4])
    return total


def strangers_listen(pid: int, port: int) -> bool:
    """Whether a process outside the tree of `pid` listens on that port of the loopback address.

    Two servers can: vLLM allows others to share its port when it has several API servers, and the kernel then hands
    each connection to either. Nothing is known, and False returned, where the files of the tree may not be read.
    """
    listening = set(_listeners(port))
    for process in tree(pid):
        try:
            listening -= set(_sockets(process.pid))
        except PermissionError:
            return False
        except FileNotFoundError:
            continue
    return bool(listening)


def _listeners(port: int) -> Iterator[str]:
    """Inodes of the sockets that take connections to 127.0.0.1 and this port (`/proc/net/tcp`, see proc(5))."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for table, anywhere in (("tcp", "00000000"), ("tcp6", "0" * 32)):
        file = _PROC / "net" / table
        for line in file.read_text(encoding="ascii").splitlines()[1:] if file.exists() else ():
            fields = line.split()
            address, _, local_port = fields[1].partition(":")
            exact = address.endswith("0100007F")
            if fields[3] == _LISTENING and int(local_port, 16) == port and (exact or address == anywhere):
                found[exact].append(fields[9])
    # A socket bound to the very address wins over one that is bound to all.
    yield from found[True] or found[False]


def _sockets(pid: int) -> Iterator[str]:
    folder = _PROC / str(pid) / "fd"
    for link in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            match = _SOCKET.fullmatch(str(link.readlink()))
            if match is not None:
                yield match[1]
