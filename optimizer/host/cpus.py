"""Which cores the engine gets, and which the load client."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuSplit:
    """Disjoint sets of CPU numbers; both hold all of them when there is only one."""

    engine: tuple[int, ...]
    client: tuple[int, ...]


def split_cpus() -> CpuSplit:
    """Give the client the last allowed core and the engine the rest, so that neither slows the other.

    With a single core both share it, and the measurement says less.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) == 1:
        return CpuSplit(tuple(allowed), tuple(allowed))
    return CpuSplit(tuple(allowed[:-1]), tuple(allowed[-1:]))


def pin_this_process(cpus: tuple[int, ...]) -> None:
    """Keep this process, with all its threads from now on, on these cores."""
    os.sched_setaffinity(0, cpus)
