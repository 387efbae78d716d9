"""The kernel's small files on memory, read so that one which is not there, or not for us to see, says nothing."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")
SYSFS = Path("/sys")
CGROUP_V1 = "fs/cgroup/memory"
CGROUP_V2 = "fs/cgroup"
"""Where the root of each hierarchy is, below sysfs."""


def memory_limit_bytes(cgroup: Path) -> int | None:
    """The limit of a cgroup, given its folder in either hierarchy; None without one.

    Where there is no limit, version 1 says a number beyond all memory.
    """
    limit = number(cgroup / "memory.max")
    return number(cgroup / "memory.limit_in_bytes") if limit is None else limit


def counts(file: Path) -> dict[str, int]:
    """Lines such as `oom_kill 3` or `MemAvailable:  1024 kB`, the first word to the number."""
    rows = [line.split() for line in lines(file)]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def number(file: Path) -> int | None:
    """The one number of a file; None where it says `max`, or is not there."""
    text = "".join(lines(file))
    return int(text) if text.isdigit() else None


def lines(file: Path) -> list[str]:
    """None of a file that this kernel does not have, or does not show us."""
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
