"""Everything that is observed beside the load, in one context: engine, CPU by thread, GPUs, energy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.measurement import EngineMetrics, GpuUsage, HostUsage
from optimizer.host.gpus import Gpu
from optimizer.metrics.cpu_energy import PackageEnergy, read_package_energy
from optimizer.metrics.engine_scraper import EngineScraper
from optimizer.metrics.gpu_usage import GpuGauges, GpuMeter, reduce_gpu
from optimizer.metrics.host_sampler import HostSampler
from optimizer.metrics.host_usage import HostUsageMonitor
from optimizer.metrics.series import Observations, write_series
from optimizer.metrics.threads import ThreadMeter


@dataclass(frozen=True, slots=True)
class Observed:
    """What the window showed. Everything that could not be read is told in `engine.notes`."""

    engine: EngineMetrics
    host: HostUsage
    gpu: GpuUsage


class Telemetry:
    """Use it as an async context manager around the load, on the load's event loop; then ask for the result.

    Args:
        endpoint: The live engine.
        session: Made and closed by the caller.
        engine_pids: Gives the engine's leaders; none for a server that is not ours to look into.
        client_pids: Gives the processes that make the load; see `ThreadMeter`.
        gauges: NVML, where the engine runs on GPUs.
        gpus: The engine's cards.
        interval_s: Time between two samples of threads and cards; /metrics is read twice as often.
    """

    def __init__(
        self,
        endpoint: EngineEndpoint,
        session: aiohttp.ClientSession,
        *,
        engine_pids: Callable[[], Iterable[int]],
        client_pids: Callable[[], Iterable[int]] | None = None,
        gauges: GpuGauges | None = None,
        gpus: Sequence[Gpu] = (),
        interval_s: float = 1.0,
    ) -> None:
        self._scraper = EngineScraper(endpoint, session, interval_s=interval_s / 2)
        self._usage = HostUsageMonitor(engine_pids)
        self._gpus = GpuMeter(gauges, gpus) if gauges is not None and gpus else None
        self._sampler = HostSampler(ThreadMeter(engine_pids, client_pids), self._gpus, interval_s=interval_s)
        self._stack = contextlib.AsyncExitStack()
        self._start_s: float | None = None
        self._end_s: float | None = None
        self._energy: list[PackageEnergy | str] = []

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            for part in (self._scraper, self._usage, self._sampler):
                await stack.enter_async_context(part)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    def mark_start(self) -> None:
        """The window opens now."""
        self._start_s = time.monotonic()
        self._energy.append(read_package_energy())
        for part in (self._scraper, self._usage, self._sampler):
            part.mark_start()

    def mark_end(self) -> None:
        """The window closes now."""
        self._end_s = time.monotonic()
        self._energy.append(read_package_energy())
        for part in (self._scraper, self._usage, self._sampler):
            part.mark_end()

    def result(self) -> Observed:
        """What happened between the marks; to be asked after the context was left."""
        engine = self._scraper.result()
        notes = list(engine.notes)
        gpu = GpuUsage()
        if self._gpus is not None:
            gpu = reduce_gpu(self._sampler.gpu_window(), notes)
            notes += [] if self._gpus.trouble is None else [self._gpus.trouble]
        host = replace(
            self._usage.result(),
            roles=self._sampler.roles(),
            engine_cpus=None if self._sampler.engine_cpus is None else float(self._sampler.engine_cpus),
            cpu_energy_j=self._cpu_energy_j(notes),
        )
        return Observed(replace(engine, notes=tuple(notes)), host, gpu)

    def write(self, path: Path) -> None:
        """Keep the course of the run, as far as it was observed, as a gzipped CSV; see `series.COLUMNS`.

        Raises:
            OSError: It cannot be written.
        """
        write_series(path, self.observations())

    def observations(self) -> Observations:
        """Everything that was sampled; without marks the window is all of it."""
        readings = self._scraper.readings
        points = self._sampler.points
        samples = self._sampler.gpu_samples
        times = [at for at, _ in readings] + [at for at, _ in points] + [sample.at_s for sample in samples]
        start_s = min(times, default=0.0) if self._start_s is None else self._start_s
        end_s = max(times, default=start_s) if self._end_s is None else self._end_s
        return Observations(readings, points, samples, start_s, end_s)

    def _cpu_energy_j(self, notes: list[str]) -> float | None:
        if len(self._energy) != 2:
            return None
        before, after = self._energy
        if isinstance(before, PackageEnergy) and isinstance(after, PackageEnergy):
            return after.since(before)
        # On a GPU host the cards' energy is the one that counts.
        if self._gpus is None:
            notes.append(before if isinstance(before, str) else str(after))
        return None
