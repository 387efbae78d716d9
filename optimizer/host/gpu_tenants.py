"""Who is on a card: processes of this study, and others; told by descent and by the mark in their environment."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from optimizer.host.gpus import Gpu, GpuProcess, GpuReading
from optimizer.host.guard import environment_of, look_around, with_descendants

GIB = 2**30

TellOurs = Callable[[Iterable[int]], frozenset[int]]
"""Picks those PIDs that belong to this study."""


@dataclass(frozen=True, slots=True)
class CardLook:
    """One look at a card, its processes told apart.

    Attributes:
        used_bytes: All that is used of it, by whomever.
        ours: Processes of this study.
        others: The other listed ones. A PID of another namespace is among them: nothing here answers to it.
    """

    gpu: Gpu
    used_bytes: int
    ours: tuple[GpuProcess, ...] = ()
    others: tuple[GpuProcess, ...] = ()

    @property
    def others_bytes(self) -> int:
        """What the other listed processes hold, as far as the driver tells."""
        return sum(process.used_bytes or 0 for process in self.others)

    @property
    def tenants(self) -> tuple[str, ...]:
        """A line for each process that is not ours; one that says so when none is listed."""
        if not self.others:
            return (f"{self.gpu.label}: no process is listed for it; the holder may be in another container",)
        return tuple(f"{self.gpu.label}: {process_words(process)}" for process in self.others)


def look_at(gpu: Gpu, reading: GpuReading, tell_ours: TellOurs) -> CardLook:
    """Tell the processes of a reading apart."""
    ours = tell_ours(process.pid for process in reading.processes)
    return CardLook(
        gpu,
        reading.used_bytes,
        tuple(process for process in reading.processes if process.pid in ours),
        tuple(process for process in reading.processes if process.pid not in ours),
    )


def processes_of(variable: str, beginning: str) -> TellOurs:
    """Tells the processes of a study from others: they descend from this one, or bear the study's mark.

    The mark finds what descends from nobody any more, such as an engine whose guard was killed.

    Args:
        variable: In the environment of every process of the study.
        beginning: How its value begins.
    """

    def tell(pids: Iterable[int]) -> frozenset[int]:
        wanted = set(pids)
        if not wanted:
            return frozenset()
        family = with_descendants(look_around(), {os.getpid()})
        marked = {pid for pid in wanted - family if environment_of(pid).get(variable, "").startswith(beginning)}
        return frozenset(wanted & family | marked)

    return tell


def process_words(process: GpuProcess) -> str:
    """Such as `pid 4711 (python3 of ann) holds 41.0 GiB`."""
    held = "an unknown amount" if process.used_bytes is None else f"{process.used_bytes / GIB:.1f} GiB"
    return f"pid {process.pid} ({_who(process.pid)}) holds {held}"


def _who(pid: int) -> str:
    try:
        folder = Path(f"/proc/{pid}")
        command = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
        owner = folder.stat().st_uid
    except OSError:
        return "not visible from here"
    try:
        return f"{command} of {pwd.getpwuid(owner).pw_name}"
    except KeyError:
        return f"{command} of uid {owner}"
