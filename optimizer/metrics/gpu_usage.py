"""What the engine's GPUs did over the window, from samples of NVML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from optimizer.core.errors import HostError
from optimizer.core.measurement import GpuUsage
from optimizer.host.gpu_activity import GpuActivity
from optimizer.host.gpus import Gpu


class GpuGauges(Protocol):
    """Tells what a card does; `NvmlLibrary` does, within milliseconds."""

    def activity(self, gpu: Gpu) -> GpuActivity:
        """One look; raises HostError when the driver fails."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """All cards at one moment of the monotonic clock, in the order of the engine's cards."""

    at_s: float
    cards: tuple[GpuActivity, ...]


class GpuMeter:
    """Samples the cards; a driver that fails is a note, and is asked no more.

    Args:
        gauges: NVML.
        gpus: The engine's cards; may be empty.
    """

    def __init__(self, gauges: GpuGauges, gpus: Sequence[Gpu]) -> None:
        self._gauges = gauges
        self._gpus = tuple(gpus)
        self.samples: list[GpuSample] = []
        self.trouble: str | None = None

    def sample(self, at_s: float) -> None:
        """One look at every card."""
        if not self._gpus or self.trouble is not None:
            return
        try:
            self.samples.append(GpuSample(at_s, tuple(self._gauges.activity(gpu) for gpu in self._gpus)))
        except HostError as error:
            self.trouble = error.message


def reduce_gpu(samples: Sequence[GpuSample], notes: list[str]) -> GpuUsage:
    """Means over the window's samples; energy from the cards' own counters, else from the mean power.

    Args:
        samples: Those of the window, at least two, in order of time.
        notes: Takes what the driver does not report.
    """
    if len(samples) < 2:
        notes.append(f"the GPUs were sampled {len(samples)} times in the window; 2 are needed")
        return GpuUsage()
    cards = [card for sample in samples for card in sample.cards]
    missing = [name for name in ("util", "power_w", "energy_j") if all(getattr(card, name) is None for card in cards)]
    notes += [f"GPU {name}: not reported by the driver" for name in missing]
    power_w, energy_j = _power_and_energy(samples)
    throttled = [card.throttled_by for card in cards if card.throttled_by is not None]
    memory = [_sum(card.used_bytes for card in sample.cards) for sample in samples]
    return GpuUsage(
        gpu_util_mean=_mean(card.util for card in cards),
        gpu_mem_util_mean=_mean(card.mem_util for card in cards),
        gpu_power_w_mean=power_w,
        gpu_energy_j=energy_j,
        gpu_memory_used_max_bytes=max((used for used in memory if used is not None), default=None),
        gpu_sm_clock_mhz_mean=_mean(card.sm_clock_mhz for card in cards),
        gpu_throttled_share=sum(map(bool, throttled)) / len(throttled) if throttled else None,
        throttle_reasons=tuple(sorted(frozenset().union(*throttled))),
    )


def _power_and_energy(samples: Sequence[GpuSample]) -> tuple[float | None, float | None]:
    first, last = samples[0], samples[-1]
    elapsed_s = last.at_s - first.at_s
    counters = [
        None if before.energy_j is None or after.energy_j is None else after.energy_j - before.energy_j
        for before, after in zip(first.cards, last.cards, strict=True)
    ]
    energy_j = _sum(counters)
    # A counter starts again from zero when the driver is loaded anew.
    if energy_j is not None and elapsed_s > 0.0 and all(used is not None and used >= 0.0 for used in counters):
        return energy_j / elapsed_s, energy_j
    draws = [draw for draw in (_sum(card.power_w for card in sample.cards) for sample in samples) if draw is not None]
    power_w = _mean(draws)
    return power_w, None if power_w is None else power_w * elapsed_s


def _sum(values: Iterable[float | None]) -> float | None:
    """Over all cards; None when one of them does not tell, since a part would pass for the whole."""
    known = list(values)
    return None if any(value is None for value in known) else float(sum(value for value in known if value is not None))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
