"""An engine's life with other work in it than one window: a sweep over levels, or a batch all at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from optimizer.core.measurement import Measurement
from optimizer.core.trial import Stage
from optimizer.engine.launch import EngineLauncher, EngineProcess
from optimizer.load import LoadFailed, Workload, write_samples
from optimizer.load.progress import LoadProgress
from optimizer.tuning.capacity import CapacityFound
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.trial_pipeline import REQUEST_SAMPLES, TrialJob, TrialPipeline

Visit: TypeAlias = Callable[[EngineProcess, TrialJob, Callable[[LoadProgress], None]], Awaitable[Measurement]]
"""Done with a ready engine; gives the last of what it measured."""


class VisitPipeline(TrialPipeline):
    """Launches, waits until the engine is ready, lets the visit work with it, and stops it, as a trial does.

    Args:
        launcher: Starts the engine.
        workload: What it is loaded with.
        visit: The work. Cancelled when the engine ends.
        survivors_fail_once: As for a trial.
        hang_s: As for a trial, of the start alone: a visit may pause between loads.
    """

    def __init__(
        self,
        launcher: EngineLauncher,
        workload: Workload,
        visit: Visit,
        *,
        survivors_fail_once: bool = False,
        hang_s: float,
    ) -> None:
        super().__init__(launcher, workload, survivors_fail_once=survivors_fail_once, hang_s=hang_s)
        self._visit = visit

    async def _load(
        self, engine: EngineProcess, job: TrialJob, clock: StageClock, on_progress: Callable[[LoadProgress], None]
    ) -> tuple[Measurement, CapacityFound | None]:
        clock.enter(Stage.MEASURING)

        async def work() -> Measurement:
            return await self._visit(engine, job, on_progress)

        measurement = await engine.unless_it_ends(work(), Stage.MEASURING)
        write_samples(job.folder / REQUEST_SAMPLES, measurement.load)
        if not measurement.load.ok.any():
            raise LoadFailed("no request succeeded", tuple(sorted({e for e in measurement.load.errors if e}))[:5])
        return measurement, None
