"""How well the load generator kept up with its own schedule."""

from __future__ import annotations

from dataclasses import dataclass

SPOILS_AT = 0.05
"""A client that is late by this share of the tightest limit spoils the run: it, and not the engine, may decide."""
FULL_CORE = 0.85
"""A sender is one thread. Fed in bursts, it queues for most of the time above this; below it there is room."""
COARSE_MS = 2.0
"""No less counts as late. Timers of asyncio are a millisecond coarse, and as much is lost in reading a burst."""


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """The load generator's own delays and CPU over the window.

    Attributes:
        lag_p99_ms: How late its event loops were, P99 of a tick every 20 ms; times of tokens are no better than that.
            None of fewer than 100 ticks.
        lateness_p99_ms: P99 of how late requests left after they were due and had a free slot. None of fewer than 100.
        cpu_cores: CPU seconds per second of all its processes.
        busiest_cores: The same of the busiest of them. Each is one thread: near 1.0 it is the bottleneck.
        processes: How many of them sent requests.
    """

    lag_p99_ms: float | None
    lateness_p99_ms: float | None
    cpu_cores: float
    busiest_cores: float
    processes: int

    def spoiled(self, limit_ms: float | None) -> str | None:
        """Why the run cannot be trusted, in one sentence; None if it can.

        Args:
            limit_ms: The tightest limit on a latency; without one only a process that has no CPU left spoils a run.
        """
        if self.busiest_cores >= FULL_CORE:
            return (
                f"the client could not keep up: its busiest process used {self.busiest_cores:.2f} of a core, so the "
                f"load was bound by it and not by the engine ({self._processes})"
            )
        if limit_ms is None:
            return None
        allowed_ms = max(SPOILS_AT * limit_ms, COARSE_MS)
        for late_ms, what in ((self.lag_p99_ms, "its event loop was late"), (self.lateness_p99_ms, "requests left")):
            if late_ms is not None and late_ms > allowed_ms:
                how = "by" if what.startswith("its") else "late by"
                return (
                    f"the client could not keep up: {what} {how} {late_ms:.1f} ms (P99), and {allowed_ms:.1f} ms is "
                    f"5 % of the tightest limit ({self._processes})"
                )
        return None

    @property
    def _processes(self) -> str:
        return f"{self.processes} load process{'es' if self.processes > 1 else ''}, {self.cpu_cores:.1f} cores"
