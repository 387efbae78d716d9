"""Who sends the load of one run: this process, or several."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn, Protocol

from optimizer.core.endpoint import EngineEndpoint
from optimizer.load.completion import RequestTrace, open_client
from optimizer.load.requests import RequestPlan
from optimizer.load.self_watch import SelfWatch
from optimizer.load.sender import Sender, Share
from optimizer.load.workload import Workload


class Crew(Protocol):
    """Sends the load. The list of traces it was given grows, and what it holds is brought up to date."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing more will ever become due."""

    @property
    def known_until_s(self) -> float:
        """Everything that happened before this is in the traces."""

    @property
    def senders(self) -> Sequence[SelfWatch]:
        """What the processes that send have seen of themselves."""

    @property
    def others(self) -> Sequence[SelfWatch]:
        """The same of the client's processes that do not send."""

    async def start(self) -> float:
        """Begins to send the ramp; returns when that is.

        Raises:
            ClientSpoiled: A process does not start.
        """

    def open_window(self) -> float:
        """Goes over to the window's requests; returns when that is, which is now or soon."""

    async def alarm(self) -> NoReturn:
        """Waits for trouble with the crew itself.

        Raises:
            ClientSpoiled: A process has gone.
        """

    async def stop(self) -> None:
        """Gives up what is under way. The traces change no more."""


class LocalCrew:
    """This process alone.

    Args:
        sender: Sends all of the load.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._watch = SelfWatch()
        self._tasks: list[asyncio.Task[NoReturn]] = []

    @property
    def exhausted(self) -> bool:
        """Whether nothing more will ever become due."""
        return self._sender.exhausted

    @property
    def known_until_s(self) -> float:
        """As the sender says: what has happened is known at once, what is due may come late."""
        return self._sender.known_until_s

    @property
    def senders(self) -> Sequence[SelfWatch]:
        """This process."""
        return (self._watch,)

    @property
    def others(self) -> Sequence[SelfWatch]:
        """None."""
        return ()

    async def start(self) -> float:
        """Begins to send, now."""
        start_s = time.monotonic()
        self._tasks = [asyncio.create_task(self._sender.run(start_s)), asyncio.create_task(self._watch.run())]
        return start_s

    def open_window(self) -> float:
        """Goes over to the window's requests, now."""
        opens_s = time.monotonic()
        self._sender.open_window(opens_s)
        return opens_s

    async def alarm(self) -> NoReturn:
        """Only a fault of ours ends this."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        raise AssertionError("a sender never ends by itself") from done.pop().exception()

    async def stop(self) -> None:
        """Cancels what is under way, which closes its connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def local_crew(
    endpoint: EngineEndpoint,
    workload: Workload,
    plan: RequestPlan,
    *,
    traces: list[RequestTrace],
    on_end: Callable[[RequestTrace], None],
) -> AsyncIterator[LocalCrew]:
    """A crew of this process; nothing is under way any more when the block is left."""
    async with open_client(endpoint) as client:
        crew = LocalCrew(Sender(workload, plan, client, Share(), traces=traces, on_end=on_end))
        try:
            yield crew
        finally:
            await crew.stop()
