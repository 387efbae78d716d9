"""How much memory the host has left for us, and how often its kernel has killed a process for want of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optimizer.host.kernel_files import CGROUP_V1, CGROUP_V2, PROC, SYSFS, counts, lines, memory_limit_bytes, number


@dataclass(frozen=True, slots=True)
class MemoryLeft:
    """The host's memory at one moment.

    Attributes:
        available_bytes: What a process of ours could still take: of the host, or of our cgroup where that has less.
        oom_kills: Processes that the kernel has killed for want of memory so far: those of our cgroup, or of the host
            where we see no cgroup. None where the kernel does not count them (before 4.13).
    """

    available_bytes: int
    oom_kills: int | None


def memory_left(proc: Path = PROC, sysfs: Path = SYSFS) -> MemoryLeft:
    """The memory now.

    Args:
        proc: Where the kernel's procfs is mounted.
        sysfs: Where its sysfs is.
    """
    cgroup = _own_cgroup(proc, sysfs)
    available = counts(proc / "meminfo").get("MemAvailable:", 0) * 1024
    room = None if cgroup is None else _room_bytes(cgroup)
    kills = None if cgroup is None else _oom_kills(cgroup)
    return MemoryLeft(
        available_bytes=available if room is None else min(available, room),
        oom_kills=counts(proc / "vmstat").get("oom_kill") if kills is None else kills,
    )


def _own_cgroup(proc: Path, sysfs: Path) -> Path | None:
    """The folder of the cgroup that accounts for our memory, which an engine of ours shares.

    A container sees its own cgroup as the root of the hierarchy, whatever `/proc/self/cgroup` calls it.
    """
    for line in lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        hierarchy = sysfs / (CGROUP_V1 if controllers else CGROUP_V2)
        for folder in (hierarchy / path.strip("/"), hierarchy):
            if _events(folder).is_file():
                return folder
    return None


def _events(folder: Path) -> Path:
    """The file that counts kills: of cgroup 2 `memory.events`, of cgroup 1 `memory.oom_control`."""
    events = folder / "memory.events"
    return events if events.is_file() else folder / "memory.oom_control"


def _oom_kills(folder: Path) -> int | None:
    return counts(_events(folder)).get("oom_kill")


def _room_bytes(folder: Path) -> int | None:
    """What the cgroup's limit leaves, file pages that may be dropped at once counted as free; None without a limit."""
    limit, used = memory_limit_bytes(folder), number(folder / "memory.current")
    if used is None:
        used = number(folder / "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    stat = counts(folder / "memory.stat")
    return max(0, limit - used + stat.get("total_inactive_file", stat.get("inactive_file", 0)))
