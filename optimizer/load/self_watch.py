"""A load process watches itself: how late its event loop is, and what CPU it takes."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from optimizer.core.client_health import ClientHealth
from optimizer.core.measurement import FloatArray

TICK_S = 0.02
FEWEST = 100
"""The P99 of fewer values is the worst of them, and one stall is no verdict on a client."""


class SelfWatch:
    """What one process saw of itself, a sample every tick.

    Attributes:
        at_s: When each sample was taken.
        lag_s: How late the tick came.
        cpu_s: CPU seconds that the process had taken by then.
    """

    def __init__(self) -> None:
        self.at_s = array("d")
        self.lag_s = array("d")
        self.cpu_s = array("d")

    async def run(self) -> NoReturn:
        """Ticks until it is cancelled."""
        while True:
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            self.at_s.append(now_s)
            self.lag_s.append(max(0.0, now_s - due_s))
            self.cpu_s.append(time.process_time())

    def lags_s(self, start_s: float, end_s: float) -> FloatArray:
        """The lags within a time."""
        at_s = np.array(self.at_s)
        return np.array(self.lag_s)[(at_s >= start_s) & (at_s < end_s)]

    def cpu_cores(self, start_s: float, end_s: float) -> float:
        """CPU seconds per second within a time, as far as it was seen; 0 without two samples."""
        if len(self.at_s) < 2 or end_s <= start_s:
            return 0.0
        before, after = np.interp([start_s, end_s], np.array(self.at_s), np.array(self.cpu_s))
        return float(after - before) / (end_s - start_s)


def health_of(
    senders: Sequence[SelfWatch], others: Sequence[SelfWatch], lateness_s: FloatArray, start_s: float, end_s: float
) -> ClientHealth:
    """What the processes of one run saw of themselves within its window.

    Args:
        senders: Those that sent requests and read answers.
        others: Further processes of the client, whose CPU counts.
        lateness_s: How late each counted request left, of those that did.
        start_s: When the window opened.
        end_s: When it closed.
    """
    lags_s = np.concatenate([watch.lags_s(start_s, end_s) for watch in senders])
    cores = [watch.cpu_cores(start_s, end_s) for watch in (*senders, *others)]
    return ClientHealth(
        lag_p99_ms=_p99_ms(lags_s),
        lateness_p99_ms=_p99_ms(lateness_s),
        cpu_cores=sum(cores),
        busiest_cores=max(cores),
        processes=len(senders),
    )


def _p99_ms(values_s: FloatArray) -> float | None:
    return float(np.percentile(values_s, 99)) * 1000.0 if values_s.size >= FEWEST else None
