"""Whether the kernel killed a process for want of memory while an engine lived, and who had taken that memory.

A killed process says nothing in its log, and a signal does not tell who sent it. The kernel counts its own kills; and
once the killed process is gone, what is left shows how much the engine could have had to itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from optimizer.host.memory_left import MemoryLeft, memory_left

LEAST_OF_USUAL: Final = 0.8
"""With less than this share of the usual memory left, others took it. The engine's own processes that still live, such
as the other workers of a tensor-parallel one, hold far less than the rest."""


@dataclass(frozen=True, slots=True)
class MemoryKill:
    """The kernel killed processes for want of memory while an engine lived.

    Attributes:
        kills: How many, of our cgroup or else of the host.
        left_bytes: Memory that is left without the killed ones.
        usual_bytes: Memory that was left before an engine was launched, at the launch of this run where that was most.
    """

    kills: int
    left_bytes: int
    usual_bytes: int

    @property
    def by_others(self) -> bool:
        """Whether the host was short of memory without the engine: before its launch, or through others since."""
        return self.left_bytes < LEAST_OF_USUAL * self.usual_bytes


@dataclass(frozen=True, slots=True)
class MemoryWatch:
    """What was seen of the host's memory before an engine was launched.

    Attributes:
        kills: That the kernel had made by then; None where it does not count them.
        usual_bytes: See `MemoryKill`.
    """

    kills: int | None
    usual_bytes: int

    def look(self) -> MemoryKill | None:
        """The kills since; None when there are none, or they are not counted."""
        now = memory_left()
        if self.kills is None or now.oom_kills is None or now.oom_kills <= self.kills:
            return None
        return MemoryKill(now.oom_kills - self.kills, now.available_bytes, self.usual_bytes)


class MemoryHistory:
    """The memory before each launch of a run."""

    def __init__(self) -> None:
        self._most_bytes = 0

    def before_launch(self) -> MemoryWatch:
        """To be called before each launch."""
        now: MemoryLeft = memory_left()
        self._most_bytes = max(self._most_bytes, now.available_bytes)
        return MemoryWatch(now.oom_kills, self._most_bytes)
