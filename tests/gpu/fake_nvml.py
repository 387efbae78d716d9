"""A scripted NVML: cards with tenants that come and go on a clock of its own."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from optimizer.core.errors import HostError
from optimizer.host.gpu_activity import GpuActivity
from optimizer.host.gpus import Gpu, GpuProcess, GpuReading

GIB = 2**30
H200_BYTES = 140 * GIB


def card(index: int = 0, *, name: str = "NVIDIA H200", total_bytes: int = H200_BYTES) -> Gpu:
    return Gpu(f"GPU-{index:08x}-feed", index, name, total_bytes)


@dataclass
class FakeNvml:
    """Any number of cards. `used` is memory without a listed process; `tenants` is by card and PID.

    With `lists_pids` False no process is ever listed, as in a container; a tenant of None bytes is one whose memory
    the driver does not tell.
    """

    cards: tuple[Gpu, ...] = field(default_factory=lambda: (card(),))
    used: dict[str, int] = field(default_factory=dict)
    tenants: dict[str, dict[int, int | None]] = field(default_factory=dict)
    lists_pids: bool = True
    broken: str | None = None
    reads: int = 0
    closed: bool = False
    doing: dict[str, GpuActivity] = field(default_factory=dict)
    """What a card does, by UUID; one that is not listed reports nothing."""
    _read: threading.Condition = field(default_factory=threading.Condition)

    def driver_version(self) -> str:
        return "580.1"

    def gpus(self) -> tuple[Gpu, ...]:
        return self.cards

    def find(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.cards if gpu.uuid == uuid), None)

    def read(self, gpu: Gpu) -> GpuReading:
        with self._read:
            self.reads += 1
            self._read.notify_all()
        if self.broken is not None:
            raise HostError(self.broken)
        here = tuple(self.tenants.get(gpu.uuid, {}).items())  # at one go: they change in another thread
        used = self.used.get(gpu.uuid, 0) + sum(held or 0 for _, held in here)
        listed = tuple(GpuProcess(pid, held) for pid, held in here) if self.lists_pids else ()
        return GpuReading(used, listed)

    def activity(self, gpu: Gpu) -> GpuActivity:
        if self.broken is not None:
            raise HostError(self.broken)
        return self.doing.get(gpu.uuid, GpuActivity())

    def wait_for_reads(self, count: int) -> None:
        """Until there were so many; a broken library is read once more at most, and by nobody again."""
        with self._read:
            assert self._read.wait_for(lambda: self.reads >= count or self.broken is not None, timeout=60)

    def close(self) -> None:
        self.closed = True

    def enters(self, pid: int, held_bytes: int | None, gpu: Gpu | None = None) -> None:
        self.tenants.setdefault((gpu or self.cards[0]).uuid, {})[pid] = held_bytes

    def leaves(self, pid: int, gpu: Gpu | None = None) -> None:
        del self.tenants[(gpu or self.cards[0]).uuid][pid]

    def leaves_memory_behind(self, pid: int, gpu: Gpu | None = None) -> None:
        """The process is gone, its memory is not yet."""
        uuid = (gpu or self.cards[0]).uuid
        self.used[uuid] = self.used.get(uuid, 0) + (self.tenants[uuid].pop(pid) or 0)


@dataclass
class FakeClock:
    """Time that passes only by sleeping; what is due happens on the way."""

    now: float = 0.0
    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def now_s(self) -> float:
        return self.now

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        self.due.append((when_s, action))
        self.due.sort(key=lambda entry: entry[0])

    @property
    def sleep(self) -> Callable[[float], Awaitable[None]]:
        async def sleep(seconds: float) -> None:
            self.now += seconds
            while self.due and self.due[0][0] <= self.now:
                self.due.pop(0)[1]()

        return sleep


def tells(*pids: int) -> Callable[[Iterable[int]], frozenset[int]]:
    """Takes these PIDs for ours."""
    return lambda asked: frozenset(asked) & frozenset(pids)
