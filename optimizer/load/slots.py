"""The cap on requests in flight: who comes first goes first, and learns since when there was room."""

from __future__ import annotations

import asyncio
import time
from collections import deque


class Slots:
    """So many requests may be under way.

    Args:
        number: How many; None sets no limit.
    """

    def __init__(self, number: int | None) -> None:
        self._free = number
        self._waiting: deque[asyncio.Future[float]] = deque()

    async def take(self, due_s: float) -> float:
        """Waits for a slot; returns since when the request could leave: `due_s`, or when its slot came free."""
        if self._free is None:
            return due_s
        if self._free > 0:
            self._free -= 1
            return due_s
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return max(due_s, await turn)
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        """A request has ended; the first that waits takes its slot."""
        if self._free is None:
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(time.monotonic())
                return
        self._free += 1
