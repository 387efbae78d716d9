"""What an earlier run left behind when it and its guard were both killed: found by the ledger, ended, and told."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from optimizer.host.guard import Seen, end, look, processes_of_engine, remove_scratch
from optimizer.host.ledger import EngineLedger, LedgerEntry
from optimizer.host.processes import name_processes, tell_survivors
from optimizer.host.scratch import remove_shared_memory, shared_memory_of

_GRACE_S = 3.0
_GUARD_TIDIES_S = 9.0
"""A guard whose optimizer is gone ends its engine by itself: 3 s of patience, 4 s of SIGKILL, and some to spare."""
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Remains:
    """What a guard that is no longer served left behind.

    Attributes:
        entry: What the ledger knew of it.
        ended: Processes that lived and are gone now.
        left: Processes that survived SIGKILL.
    """

    entry: LedgerEntry
    ended: tuple[Seen, ...]
    left: tuple[Seen, ...]

    def __str__(self) -> str:
        of = f" of trial {self.entry.trial}" if self.entry.trial else ""
        said = f"an earlier run (pid {self.entry.owner.pid}) was killed and left processes{of} behind"
        return "; ".join([said, *self.fates("ended")])

    def fates(self, ended: str) -> list[str]:
        """What became of the processes, for a message: first, after the words of `ended`, those that are gone."""
        said = [f"{ended} {name_processes(self.ended)}"] if self.ended else []
        return [*said, tell_survivors(name_processes(self.left))] if self.left else said


def living(entry: LedgerEntry) -> list[Seen]:
    """Processes of the entry's guard that live: the guard, if it does, and all of its engine."""
    guard = look(entry.guard.pid)
    own = [guard] if guard is not None and guard.key == entry.guard else []
    return own + processes_of_engine(entry.guard, entry.leader, entry.mark)


def end_remains(entry: LedgerEntry) -> Remains:
    """End whatever of a guard lives; blocks for 16 s at the most. Returns at once when nothing does.

    A guard that lives is first given the time to end its engine itself.
    """
    found = {process.key: process for process in living(entry)}
    if not found:
        return Remains(entry, (), ())
    segments = shared_memory_of(process.pid for process in found.values())
    deadline_s = time.monotonic() + _GUARD_TIDIES_S
    while entry.guard in {process.key for process in living(entry)} and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)

    def find() -> list[Seen]:
        now = living(entry)
        found.update((process.key, process) for process in now)
        return now

    left = end(find, entry.leader, _GRACE_S).left
    if not left and entry.leader is not None:
        remove_shared_memory(segments, since_s=entry.launched_at_s)
    gone = set(found) - {process.key for process in left}
    return Remains(entry, tuple(found[key] for key in sorted(gone)), tuple(left))


async def reap_orphans(ledger: EngineLedger) -> tuple[str, ...]:
    """End what runs that were killed left on this host, before anything new is launched.

    Only processes of guards whose optimizer is dead, by the ledger; an entry of which nothing is left is removed.

    Returns:
        What was found and done, for the person who watches; empty as a rule.
    """
    view = ledger.view()
    said = list(view.notes)
    for entry in view.entries:
        if entry.owner_lives:
            continue
        remains = await asyncio.to_thread(end_remains, entry)
        if not remains.left:
            remove_scratch(entry.scratch, entry.mark)
            ledger.remove(entry.mark)
        if remains.ended or remains.left:
            said.append(str(remains))
    return tuple(said)
