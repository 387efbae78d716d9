"""A process without one behind it."""

from __future__ import annotations

import asyncio

from optimizer.core.record import ProcessIdentity
from optimizer.host.supervisor import SupervisedProcess


class FakeProcess(SupervisedProcess):
    """Ends when a test sets `exited`; whoever launches it says what stopping it does."""

    def __init__(self) -> None:
        self.identity = ProcessIdentity("here", "boot", 1, 1)
        self.exited = asyncio.get_running_loop().create_future()
