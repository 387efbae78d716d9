"""Times the stages of one attempt."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from optimizer.core.record import StageTiming
from optimizer.core.trial import Stage


class StageClock:
    """Knows which stage an attempt is in, and how long each took.

    Args:
        on_change: Called with all stages so far whenever one begins or the last ends; records them.
    """

    def __init__(self, on_change: Callable[[tuple[StageTiming, ...]], None]) -> None:
        self._on_change = on_change
        self._done: tuple[StageTiming, ...] = ()
        self._current: tuple[Stage, datetime, float] | None = None

    @property
    def stages(self) -> tuple[StageTiming, ...]:
        """The stages so far; the running one has no duration."""
        if self._current is None:
            return self._done
        stage, started_at, _ = self._current
        return (*self._done, StageTiming(stage, started_at))

    @property
    def stage(self) -> Stage:
        """The running stage; the last one when none runs. Not to be asked before the first was entered."""
        return self.stages[-1].stage

    def enter(self, stage: Stage) -> None:
        """End the running stage and begin another. To enter the running one again changes nothing."""
        if self._current is not None and self._current[0] is stage:
            return
        self._close()
        self._current = (stage, datetime.now(UTC), time.monotonic())
        self._on_change(self.stages)

    def end(self) -> None:
        """End the running stage, if there is one."""
        if self._current is not None:
            self._close()
            self._on_change(self.stages)

    def _close(self) -> None:
        if self._current is not None:
            stage, started_at, begun = self._current
            self._done = (*self._done, StageTiming(stage, started_at, time.monotonic() - begun))
            self._current = None
