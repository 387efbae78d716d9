"""Who a process is, whether it still lives, and which processes of this host are ours."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from optimizer.core.record import ProcessIdentity
from optimizer.host.guard import MARK_VARIABLE, Seen, environment_of, look_around, start_ticks

TRIAL_VARIABLE = "AUTOTUNE_TRIAL"
"""In the environment of every process of an engine: study, trial and attempt, as `study/0/1`."""


def boot_id() -> str:
    """The kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identity_of(pid: int) -> ProcessIdentity:
    """The identity of a living process of this host; `start_ticks` is 0 when it is gone already."""
    return ProcessIdentity(host=platform.node(), boot_id=boot_id(), pid=pid, start_ticks=start_ticks(pid))


def own_identity() -> ProcessIdentity:
    """The identity of this process."""
    return identity_of(os.getpid())


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether that very process lives on this host. A process of another host or boot counts as gone."""
    if identity.boot_id != boot_id():
        return False
    return identity.start_ticks != 0 and start_ticks(identity.pid) == identity.start_ticks


@dataclass(frozen=True, slots=True)
class OurProcess:
    """A living guard, or a process of an engine that a guard started.

    Attributes:
        pid: Process id.
        name: As the kernel has it, cut at 15 characters.
        mark: Shared by a guard and all that it started.
        trial: Study, trial and attempt; `spare` for a warm spare and the engines forked from it, whose environment
            the kernel shows as the spare's; None for a plain guard.
    """

    pid: int
    name: str
    mark: str
    trial: str | None


def our_processes(mark: str | None = None) -> list[OurProcess]:
    """Living guards and engines of this user on this host, whoever their parent is and whatever session they are in.

    Args:
        mark: Only those of this guard; None finds those of all guards, of other optimizers too.
    """
    found = []
    for process in look_around().values():
        variables = environment_of(process.pid)
        carried = variables.get(MARK_VARIABLE)
        if carried and mark in (None, carried):
            found.append(OurProcess(process.pid, process.name, carried, variables.get(TRIAL_VARIABLE)))
    return found


def name_processes(processes: Iterable[Seen | OurProcess]) -> str:
    """For a message: `4711 (VLLM::EngineCor), 4712 (python)`."""
    return ", ".join(f"{process.pid} ({process.name})" for process in processes)


def tell_survivors(who: str) -> str:
    """What is said of processes that could not be ended: `4711 (python) of the engine survive SIGKILL and may ...`."""
    return f"{who} survive SIGKILL and may hold memory"
