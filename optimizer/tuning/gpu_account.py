"""What was used of a card in the course of one attempt, and by whom besides its engine."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.core.engine_config import JsonValue
from optimizer.host.gpu_tenants import GIB, CardLook
from optimizer.host.gpus import Gpu
from optimizer.tuning.gpu_hold import TOLERANCE_BYTES


@dataclass(slots=True)
class CardAccount:
    """What was used of one card in the course of an attempt, in bytes."""

    gpu: Gpu
    before_launch_bytes: int
    before_stop_bytes: int
    """As last seen before the engine was told to stop."""
    most_bytes: int
    after_stop_bytes: int = 0
    strangers: CardLook | None = None
    """The look that found most memory in the hands of others, where that had risen."""
    others_before_bytes: int = 0

    @classmethod
    def of(cls, look: CardLook) -> CardAccount:
        """Open the account with a look before the launch."""
        used = look.used_bytes
        return cls(look.gpu, used, used, used, others_before_bytes=look.others_bytes)

    def add(self, look: CardLook, *, stopping: bool) -> None:
        """Note a look while the engine is up.

        Others are judged only by a list in which we find ourselves: where PIDs are hidden or of another namespace, our
        own engine would be taken for a stranger.
        """
        self.most_bytes = max(self.most_bytes, look.used_bytes)
        if not stopping:
            self.before_stop_bytes = look.used_bytes
        known_bytes = 0 if self.strangers is None else self.strangers.others_bytes
        risen = self.risen_bytes(look) > TOLERANCE_BYTES
        if look.ours and risen and look.others_bytes > known_bytes:
            self.strangers = look

    def risen_bytes(self, look: CardLook) -> int:
        """How much more others hold than before the launch."""
        return look.others_bytes - self.others_before_bytes

    def as_dict(self) -> dict[str, JsonValue]:
        """For `gpu_memory.json`."""
        return {
            "uuid": self.gpu.uuid,
            "index": self.gpu.index,
            "name": self.gpu.name,
            "total_bytes": self.gpu.total_bytes,
            "before_launch_bytes": self.before_launch_bytes,
            "before_stop_bytes": self.before_stop_bytes,
            "most_bytes": self.most_bytes,
            "after_stop_bytes": self.after_stop_bytes,
        }

    def note(self, took_s: float) -> str:
        """In one line, for a person."""
        before, up, after = (
            f"{used / GIB:.1f}" for used in (self.before_launch_bytes, self.before_stop_bytes, self.after_stop_bytes)
        )
        return (
            f"{self.gpu.label}: {before} GiB in use before the launch, {up} GiB before the stop, "
            f"{after} GiB {took_s:.1f} s after it"
        )
