"""What a card does right now: how busy it is, what it draws, how fast it clocks and why not faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""NVML's bits (`nvmlClocksEventReasons*`) that mean held down. An idle card, clocks that a user set, a display and the
other cards of a sync group set bits too, and are none."""


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """One look at a card. None where the driver does not report the figure: slices of a card lack most.

    Attributes:
        util: Share of the driver's last sampling period in which any kernel ran.
        mem_util: Share of it in which the card's memory was read or written.
        used_bytes: Memory in use.
        power_w: Draw.
        energy_j: Drawn since the driver was loaded.
        sm_clock_mhz: Clock of the cores.
        mem_clock_mhz: Clock of the memory.
        throttled_by: What holds the clocks down now, by the words of `THROTTLE_REASONS`.
    """

    util: float | None = None
    mem_util: float | None = None
    used_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    throttled_by: frozenset[str] | None = None


def read_activity(pynvml: ModuleType, handle: Any, used_bytes: int) -> GpuActivity:
    """Ask for every figure apart, so that one that the card lacks does not cost the others.

    Raises:
        pynvml.NVMLError: The card is lost, or the driver fails.
    """
    nvml: Any = pynvml
    rates = _told(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    milliwatts = _told(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    millijoules = _told(nvml, lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    reasons = _told(nvml, lambda: _reasons(nvml, handle))
    return GpuActivity(
        util=None if rates is None else rates.gpu / 100.0,
        mem_util=None if rates is None else rates.memory / 100.0,
        used_bytes=used_bytes,
        power_w=None if milliwatts is None else milliwatts / 1000.0,
        energy_j=None if millijoules is None else millijoules / 1000.0,
        sm_clock_mhz=_told(nvml, lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        mem_clock_mhz=_told(nvml, lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
        throttled_by=None if reasons is None else _names(reasons),
    )


def _reasons(nvml: Any, handle: Any) -> int:
    """Bindings and drivers before 535 know the call by its older name."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (AttributeError, nvml.NVMLError_FunctionNotFound):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _names(bits: int) -> frozenset[str]:
    return frozenset(name for bit, name in THROTTLE_REASONS.items() if bits & bit)


def _told(nvml: Any, question: Callable[[], Any]) -> Any:
    """The answer, or None where the card or the driver has none."""
    missing = (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission)
    try:
        return question()
    except missing:
        return None
