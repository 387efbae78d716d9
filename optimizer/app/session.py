"""What every command that launches engines needs: a clear host, engines under a guard, and a clean end on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from optimizer.app.engine_choice import EngineChoice
from optimizer.app.engines import start_launcher
from optimizer.app.gpus import StudyGpus
from optimizer.config import StudyConfig
from optimizer.core.errors import HostError, Interrupted
from optimizer.engine.launch import EngineLauncher
from optimizer.host.cpus import pin_this_process, split_cpus
from optimizer.host.guard import Seen
from optimizer.host.ledger import EngineLedger, open_ledger
from optimizer.host.orphans import reap_orphans
from optimizer.host.processes import name_processes, tell_survivors

RECORD_KEPT = "the record is complete and "
"""Said of a command that was stopped, where the same command goes on."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HostState:
    """Where it is kept which engines run, and those processes of this run that could not be ended."""

    ledger: EngineLedger | None
    survivors: list[Seen]

    def keep_survivors(self, left: Iterable[Seen], of: str, notice: Callable[[str], None]) -> None:
        """Add what is left at the end of a launcher, and tell of all that could not be ended."""
        self.survivors.extend(left)
        if self.survivors:
            notice(tell_survivors(f"{name_processes(self.survivors)} of the {of}"))


def clear_host(notice: Callable[[str], None]) -> HostState:
    """End what runs that were killed left on this host, before their memory is taken for somebody else's.

    Raises:
        Interrupted: A signal came meanwhile.
    """
    try:
        ledger = open_ledger()
    except HostError as error:
        notice(f"{error.message} ({error.hint}): should this run be killed, the next cannot find its engine")
        return HostState(None, [])
    host = HostState(ledger, [])
    for note in asyncio.run(interruptible(reap_orphans(ledger), host, kept=RECORD_KEPT)):
        notice(note)
    return host


@contextlib.asynccontextmanager
async def launched_engines(
    engine: EngineChoice,
    config: StudyConfig,
    gpus: StudyGpus,
    host: HostState,
    *,
    guard_log: Path,
    ports: tuple[int, int] | None,
    notice: Callable[[str], None],
) -> AsyncIterator[EngineLauncher]:
    """A launcher for as long as the block runs; no engine of it is left afterwards, or it is told which.

    To be entered before this process is pinned to the client's cores.

    Raises:
        HostError: The guard does not come up.
    """
    section = config.engine.model_copy(update={"env": {**config.engine.env, **gpus.environment}})
    launcher = await start_launcher(
        engine,
        section,
        model=config.model.target,
        guard_log=guard_log,
        split=split_cpus(),
        port_range=ports,
        ledger=host.ledger,
    )
    try:
        yield launcher
    finally:
        host.keep_survivors(await launcher.close(), "engine", notice)


async def interruptible(work: Coroutine[Any, Any, T], host: HostState, *, kept: str = "") -> T:
    """Run the work; the first signal to stop cancels it, and further ones do not cut its tidying up short.

    Args:
        work: What is done.
        host: Knows which processes are left.
        kept: What else a person should know, put before the word on the engine.

    Raises:
        Interrupted: A signal came.
    """
    task = asyncio.create_task(work, name="study")
    stopped_by: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not stopped_by:
            stopped_by.append(number)
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # `nohup` ignores SIGHUP so that a run goes on when its terminal closes; a shell's background job, SIGINT.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not stopped_by:
            raise
        left = f"processes {name_processes(host.survivors)} are" if host.survivors else "no engine is"
        raise Interrupted(f"stopped by {stopped_by[0].name}; {kept}{left} left") from None


@contextlib.contextmanager
def client_cores(*, pinned: bool) -> Iterator[None]:
    """Keep this process, which holds the load client, off the engine's cores for a while."""
    if not pinned:
        yield
        return
    split = split_cpus()
    pin_this_process(split.client)
    try:
        yield
    finally:
        pin_this_process(tuple(sorted({*split.engine, *split.client})))
