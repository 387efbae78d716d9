"""Requests that are under way and that the engine does not count: held between client and scheduler.

A front end that detokenizes too slowly delivers in waves: answers that the engine finished long ago come out together,
and the next requests go in together. Between waves its thread rests, so that its mean use stays below a full core,
while the GPU looks busy with what is left. By Little's law completed rate x mean E2E requests are under way; the engine
counts those that run and wait. The difference is outside of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.core.measurement import Measurement, ThreadUse
from optimizer.metrics.threads import API_SERVER, busiest

HELD_SHARE = 0.15
"""Of the requests under way. On an H200 (tests/data/h200), 0.02 to 0.05 where the GPU or max-num-seqs binds, 0.08 where
the API server works evenly, 0.20 to 0.49 where it delivers in waves."""
HELD_GAPS = 30.0
"""Time outside in mean gaps between tokens: 5 to 18, and 47 to 114, in the same rows. The gauges miss a request in the
step in which it arrives and in the one in which it ends: of an answer of ten steps that is a sixth, and no delay
(tests/data/tiny_cpu_grid: shares up to 0.18, but no more than 7 gaps)."""
WORKING_THREAD = 0.5
"""Of a core. The API server that held requests used 0.69 to 0.78 on average; one that uses less has no part in it."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Means over the window.

    Attributes:
        under_way: Requests under way.
        counted: Of these, those that the engine counts: running and waiting.
        held_s: How long each request is outside of it.
        gaps: The same in mean gaps between two tokens of a request, as the engine stamps them.
    """

    under_way: float
    counted: float
    held_s: float
    gaps: float

    @property
    def share(self) -> float:
        """Of the requests under way, those outside the engine."""
        return 1.0 - self.counted / self.under_way


def outside_engine(measurement: Measurement, in_flight: int | None) -> HeldBack | None:
    """How many requests of a closed loop are outside the engine; None in an open loop, or where a figure is missing.

    Args:
        measurement: What was measured.
        in_flight: Most requests under way in the closed loop. Little's law may say fewer, such as where users pause
            between turns; more than these is chance.
    """
    load, engine = measurement.load, measurement.engine
    running, waiting, gap_ms = engine.running_mean, engine.waiting_mean, engine.engine_itl_mean_ms
    if in_flight is None or running is None or waiting is None or not gap_ms:
        return None
    if load.window_s <= 0.0 or load.window_requests == 0 or load.e2e_s.size == 0:
        return None
    per_s = load.window_requests / load.window_s
    under_way = min(float(in_flight), per_s * float(load.e2e_s.mean()))
    held_s = max(0.0, under_way - running - waiting) / per_s
    return HeldBack(under_way, running + waiting, held_s, held_s * 1000.0 / gap_ms)


def holding_thread(measurement: Measurement, held: HeldBack | None) -> ThreadUse | None:
    """The thread of the API server that holds requests back; None when it does not."""
    thread = busiest(measurement.host.roles, API_SERVER)
    if held is None or thread is None or thread.cores < WORKING_THREAD:
        return None
    return thread if held.share >= HELD_SHARE and held.gaps >= HELD_GAPS else None
