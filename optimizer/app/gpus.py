"""The cards of a study: how many it needs, which it may use, and their leases for as long as it runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from optimizer.app.engine_choice import EngineChoice
from optimizer.config import StudyConfig
from optimizer.core.engine_config import JsonValue
from optimizer.core.errors import HostError
from optimizer.core.record import StudyRecord
from optimizer.host.gpu_tenants import GIB, processes_of
from optimizer.host.gpus import VISIBLE_DEVICES, Gpu, Nvml, open_nvml, visible_gpus
from optimizer.host.leases import GpuLease, lease_gpus
from optimizer.host.processes import TRIAL_VARIABLE
from optimizer.metrics import GpuGauges
from optimizer.tuning.gpu_count import most_gpus
from optimizer.tuning.gpu_hold import GpuHold
from optimizer.tuning.settings import Settings


@dataclass(frozen=True, slots=True)
class StudyGpus:
    """The cards of a running study.

    Attributes:
        hold: Its leases; None for an engine on the CPU, and for GPUs that NVML does not know.
        driver: Version of the NVIDIA driver.
        notes: What a person should know of them.
        gauges: Tells what they do.
    """

    hold: GpuHold | None = None
    driver: str = ""
    notes: tuple[str, ...] = ()
    gauges: GpuGauges | None = None

    @property
    def identity(self) -> dict[str, JsonValue]:
        """What trials of one study share: measurements on unlike cards are never mixed."""
        return {} if self.hold is None else {"gpu": self.hold.gpus[0].name}

    @property
    def facts(self) -> dict[str, JsonValue]:
        """For the record of a study: name and memory of each card, and the driver."""
        if self.hold is None:
            return {}
        cards: list[JsonValue] = [
            {"name": gpu.name, "memory_gib": round(gpu.total_bytes / GIB, 1), "uuid": gpu.uuid}
            for gpu in self.hold.gpus
        ]
        return {"gpus": cards, "gpu_driver": self.driver}

    @property
    def environment(self) -> Mapping[str, str]:
        """Shows these cards, and no other, to a process that is to fork engines."""
        return {} if self.hold is None else self.hold.environment


@contextlib.contextmanager
def study_gpus(
    config: StudyConfig, settings: Settings, engine: EngineChoice, known: StudyRecord | None
) -> Iterator[StudyGpus]:
    """Lease the cards of a study while the block runs. A study on the CPU never touches NVML.

    Args:
        config: The study.
        settings: Tells how many cards its engines take.
        engine: What is launched.
        known: The study's record, where it goes on: it needs cards of the same kind.

    Raises:
        HostError: There is no NVIDIA driver, it does not answer, or too few cards are free.
    """
    if engine.vllm is None or config.engine.device != "gpu":
        yield StudyGpus()
        return
    nvml = open_nvml()
    if nvml is None:
        yield _without_nvml(engine.vllm.torch_version)
        return
    with contextlib.closing(nvml):
        allowed = config.engine.env.get(VISIBLE_DEVICES, os.environ.get(VISIBLE_DEVICES))
        usable = visible_gpus(nvml, allowed)
        kind = None if known is None else known.identity.get("gpu")
        hold = _hold(nvml, config.study, _of_one_kind(nvml, usable.gpus, kind), most_gpus(settings))
        with contextlib.closing(hold):
            yield StudyGpus(hold, nvml.driver_version(), (*usable.notes, *hold.notes), nvml)


def _without_nvml(torch_version: str) -> StudyGpus:
    """Raises HostError unless torch is built for GPUs that NVML does not know."""
    if "rocm" not in torch_version and "xpu" not in torch_version:
        raise HostError(
            "engine.device is gpu, and this host has no NVIDIA driver",
            hint="load the driver (nvidia-smi must work), or use a space with engine.device: cpu",
        )
    return StudyGpus(notes=(f"torch {torch_version}: such GPUs are neither leased nor looked at here",))


def _of_one_kind(nvml: Nvml, gpus: Sequence[Gpu], kind: JsonValue) -> list[list[Gpu]]:
    """Cards by name, the emptiest first; those of the recorded study alone, where there are any."""
    by_use = sorted(gpus, key=lambda gpu: nvml.read(gpu).used_bytes // GIB)
    kinds = dict.fromkeys(gpu.name for gpu in by_use)
    wanted = [kind] if kind in kinds else list(kinds)
    return [[gpu for gpu in by_use if gpu.name == name] for name in wanted]


def _hold(nvml: Nvml, study: str, kinds: Sequence[Sequence[Gpu]], count: int) -> GpuHold:
    """Hold cards of the first kind that has enough free ones."""

    def take(gpus: Sequence[Gpu], wanted: int) -> list[GpuLease]:
        return lease_gpus(gpus, wanted, study=study)

    tell_ours = processes_of(TRIAL_VARIABLE, f"{study}/")
    for candidates in kinds[:-1]:
        with contextlib.suppress(HostError):
            return GpuHold(nvml, candidates, count, take=take, tell_ours=tell_ours)
    return GpuHold(nvml, kinds[-1] if kinds else (), count, take=take, tell_ours=tell_ours)
