"""The cards of one study: leased for its whole run, looked at before each launch and after each stop.

A card is clean when no process of ours is listed for it and no more of its memory is used than before the study's
first launch. Where NVML hides PIDs, as it does in containers, the second half alone tells.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from optimizer.core.errors import HostError
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.host.gpu_tenants import GIB, CardLook, TellOurs, look_at, process_words
from optimizer.host.gpus import VISIBLE_DEVICES, Gpu, Nvml
from optimizer.host.leases import GpuLease

TOLERANCE_BYTES = 256 * 2**20
"""How far a card's use may lie above its level before the first launch: a display or a monitor moves by less, and one
CUDA context alone takes more (about 500 MiB on an H200)."""
_NOTED_BYTES = 2**30
_SETTLE_S = 10.0
"""Memory comes back up to seconds after the process is gone: 0.5 to 0.7 s on an H200, longer where a driver is slow."""
_PATIENCE_S = (_SETTLE_S, 30.0, 90.0)
"""How long a launch waits for a card that others use; longer each time, and a trial has three attempts."""
_POLL_S = 0.25
_SLOW_POLL_S = 2.0

TakeLeases = Callable[[Sequence[Gpu], int], list[GpuLease]]
"""Leases that many of these cards, or raises HostError."""


@dataclass(slots=True)
class _Card:
    lease: GpuLease
    idle_bytes: int | None = None
    """The lowest use of the card that was seen without a process of ours; None until it was."""


class GpuHold:
    """Holds the leases of a study.

    Args:
        nvml: Asked about the cards.
        candidates: All cards that the study may use, the best first.
        count: How many it needs at once.
        take: Leases cards.
        tell_ours: Tells the study's own processes from others.
        now_s: The clock that waiting is measured with.
        sleep: Waits.

    Raises:
        HostError: Too few cards are free.
    """

    def __init__(
        self,
        nvml: Nvml,
        candidates: Sequence[Gpu],
        count: int,
        *,
        take: TakeLeases,
        tell_ours: TellOurs,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._nvml = nvml
        self._candidates = tuple(candidates)
        self._take = take
        self._tell_ours = tell_ours
        self._now_s = now_s
        self._sleep = sleep
        self._cards: dict[str, _Card] = {}
        self._lost: dict[str, str] = {}
        """UUID of a card set aside to the reason."""
        self._busy_in_a_row = 0
        try:
            self._lease(count)
        except HostError:
            self.close()
            raise

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The cards that are held and not set aside."""
        return tuple(card.lease.gpu for uuid, card in self._cards.items() if uuid not in self._lost)

    @property
    def environment(self) -> dict[str, str]:
        """Shows all cards of the study to a process."""
        return visible(self.gpus)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which cards the study runs on, and what others hold of them from the beginning."""
        lines = []
        for gpu in self.gpus:
            used = self._cards[gpu.uuid].idle_bytes or 0
            beside = "" if used < _NOTED_BYTES else f"; {used / GIB:.1f} GiB of it were in use before, by others"
            lines.append(f"{gpu.label} is leased for this study{beside}")
        return tuple(lines)

    def close(self) -> None:
        """Give all cards back."""
        for card in self._cards.values():
            card.lease.release()
        self._cards.clear()

    def cards_for(self, count: int) -> tuple[Gpu, ...]:
        """Cards for an engine that takes that many; another one is leased for each that was set aside.

        Raises:
            HostError: There are no more.
        """
        missing = count - len(self.gpus)
        if missing > 0:
            self._lease(missing)
        return self.gpus[:count]

    def look(self, gpu: Gpu) -> CardLook:
        """The card as it is now.

        Raises:
            HostError: The driver does not tell.
        """
        card = self._cards[gpu.uuid]
        card.lease.touch()
        seen = look_at(gpu, self._nvml.read(gpu), self._tell_ours)
        if not seen.ours:
            idle_bytes = seen.used_bytes if card.idle_bytes is None else card.idle_bytes
            card.idle_bytes = min(idle_bytes, seen.used_bytes)
        return seen

    async def clean_before_launch(self, gpus: Sequence[Gpu]) -> tuple[list[CardLook], Failure | None]:
        """Wait, for a while, until the cards are clean.

        Returns:
            The cards as they were last seen, and why no engine can be launched on them now.
        """
        patience_s = _PATIENCE_S[min(self._busy_in_a_row, len(_PATIENCE_S) - 1)]
        looks, _ = await self._until_clean(gpus, patience_s)
        failure = self._verdict(looks, Stage.LAUNCHING)
        busy = failure is not None and failure.kind is FailureKind.GPU_BUSY
        self._busy_in_a_row = self._busy_in_a_row + 1 if busy else 0
        return looks, failure

    async def clean_after_stop(self, gpus: Sequence[Gpu]) -> tuple[list[CardLook], float, Failure | None]:
        """Wait until the cards are clean again after an engine's stop, up to 10 s.

        Returns:
            The cards as they were last seen, the seconds that took, and what is wrong with them.
        """
        looks, took_s = await self._until_clean(gpus, _SETTLE_S)
        return looks, took_s, self._verdict(looks, Stage.STOPPING)

    def set_aside(self, gpus: Sequence[Gpu], reason: str) -> None:
        """Use these cards no more in this run. Their leases stay, for nobody else could use them either."""
        self._lost.update(dict.fromkeys((gpu.uuid for gpu in gpus), reason))

    def _lease(self, count: int) -> None:
        free = [gpu for gpu in self._candidates if gpu.uuid not in self._cards]
        try:
            leases = self._take(free, count)
        except HostError as error:
            if not self._lost:
                raise
            aside = "; ".join(self._lost.values())
            raise HostError(f"{aside}. {error.message}", hint="free the card, then run the same command") from error
        for lease in leases:
            self._cards[lease.gpu.uuid] = _Card(lease)
        for lease in leases:
            self.look(lease.gpu)

    async def _until_clean(self, gpus: Sequence[Gpu], limit_s: float) -> tuple[list[CardLook], float]:
        begun_s = self._now_s()
        while True:
            looks = [self.look(gpu) for gpu in gpus]
            took_s = self._now_s() - begun_s
            if took_s >= limit_s or not any(look.ours or self._rise_bytes(look) for look in looks):
                return looks, took_s
            await self._sleep(_POLL_S if took_s < _SETTLE_S else _SLOW_POLL_S)

    def _rise_bytes(self, look: CardLook) -> int:
        """How far a card's use has risen above its idle level; 0 within the tolerance."""
        idle_bytes = self._cards[look.gpu.uuid].idle_bytes
        rise = 0 if idle_bytes is None else look.used_bytes - idle_bytes
        return rise if rise > TOLERANCE_BYTES else 0

    def _verdict(self, looks: Sequence[CardLook], stage: Stage) -> Failure | None:
        stuck = [look for look in looks if look.ours]
        if stuck:
            return self._stuck(stuck, stage)
        risen = {look.gpu.uuid: self._rise_bytes(look) for look in looks}
        busy = [look for look in looks if risen[look.gpu.uuid]]
        return gpu_busy(busy, risen, stage) if busy else None

    def _stuck(self, looks: Sequence[CardLook], stage: Stage) -> Failure:
        pids = ", ".join(str(pid) for pid in sorted({process.pid for look in looks for process in look.ours}))
        cards = " and ".join(look.gpu.label for look in looks)
        reason = f"process {pids} of an engine of this study cannot be ended and still holds {cards}"
        self.set_aside([look.gpu for look in looks], f"{cards}: set aside, since {reason}")
        return Failure(
            kind=FailureKind.HOST_FAULT,
            stage=stage,
            blame=Blame.HOST,
            detail=f"{reason}, which is set aside for the rest of this run",
            evidence=tuple(f"{look.gpu.label}: {process_words(process)}" for look in looks for process in look.ours),
            retryable=True,
        )


def visible(gpus: Sequence[Gpu]) -> dict[str, str]:
    """The environment that shows these cards, and no other, to an engine."""
    return {VISIBLE_DEVICES: ",".join(gpu.uuid for gpu in gpus)}


def gpu_busy(looks: Sequence[CardLook], risen_bytes: Mapping[str, int], stage: Stage) -> Failure:
    """Others hold memory of these cards that was free before the first launch; `risen_bytes` is by UUID."""
    cards = " and ".join(f"{risen_bytes[look.gpu.uuid] / GIB:.1f} GiB of {look.gpu.label}" for look in looks)
    return Failure(
        kind=FailureKind.GPU_BUSY,
        stage=stage,
        blame=Blame.HOST,
        detail=f"other processes hold {cards} beyond what was in use before the study's first launch",
        evidence=tuple(line for look in looks for line in look.tenants),
        retryable=True,
        facts={"others_gib": round(sum(risen_bytes[look.gpu.uuid] for look in looks) / GIB, 2)},
    )
