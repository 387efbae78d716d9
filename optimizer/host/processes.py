"""Who a process is, and whether it still lives."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from optimizer.core.record import ProcessIdentity
from optimizer.host.guard import start_ticks


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
