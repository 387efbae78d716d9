"""The GPUs of this host through NVML: which there are, what is used of their memory, and by whom."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from optimizer.core.errors import HostError
from optimizer.host.gpu_activity import GpuActivity, read_activity

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""Names the cards that CUDA may see. vLLM reads NVML's index or a UUID from it (`NvmlCudaPlatform.
device_control_id_to_physical_device_id`, the same in 0.26 and 0.32); we give UUIDs, since CUDA itself counts cards in
another order than NVML unless `CUDA_DEVICE_ORDER=PCI_BUS_ID`."""

_MIG_PREFIX = "MIG-"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card.

    Attributes:
        uuid: Such as `GPU-8f6d…`, or `MIG-…` for a slice of a card; names it on any later day too.
        index: NVML's number, which `nvidia-smi` shows.
        name: Such as `NVIDIA H200`.
        total_bytes: Its memory, without what the driver reserves.
    """

    uuid: str
    index: int
    name: str
    total_bytes: int

    @property
    def label(self) -> str:
        """How messages call it: `GPU 0 (NVIDIA H200)`."""
        return f"GPU {self.index} ({self.name})"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a card.

    Attributes:
        pid: As NVML counts it: in a container this may be a number of the host's.
        used_bytes: Its memory on the card; None where the driver does not tell.
    """

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at a card. In a container NVML may list no process although memory is used."""

    used_bytes: int
    processes: tuple[GpuProcess, ...] = ()


class Nvml(Protocol):
    """What is asked of NVML. All calls return within milliseconds and raise HostError when the driver fails."""

    def driver_version(self) -> str:
        """Such as `580.159.04`."""

    def gpus(self) -> tuple[Gpu, ...]:
        """All cards, in NVML's order; one that has fallen off the bus is left out."""

    def find(self, uuid: str) -> Gpu | None:
        """The card, or slice of one, of this UUID."""

    def read(self, gpu: Gpu) -> GpuReading:
        """What is used of it now."""


class NvmlLibrary:
    """NVML itself. Initialised until `close`, which also keeps the driver from unloading between two engines."""

    def __init__(self, pynvml: ModuleType) -> None:
        self._nvml: Any = pynvml

    def driver_version(self) -> str:
        """The version of the kernel's driver."""
        return str(self._ask(self._nvml.nvmlSystemGetDriverVersion))

    def gpus(self) -> tuple[Gpu, ...]:
        """All cards that answer."""
        count = int(self._ask(self._nvml.nvmlDeviceGetCount))
        return tuple(gpu for gpu in map(self._at, range(count)) if gpu is not None)

    def find(self, uuid: str) -> Gpu | None:
        """The card or slice, None when there is none of this UUID."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            card = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if _is_slice(uuid) else handle
            return Gpu(uuid, nvml.nvmlDeviceGetIndex(card), nvml.nvmlDeviceGetName(card), self._usable(handle))
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            return None
        except nvml.NVMLError as error:
            raise _driver_fault(error) from error

    def read(self, gpu: Gpu) -> GpuReading:
        """What is used of a card.

        Raises:
            HostError: The driver does not answer, or the card is lost.
        """
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            return GpuReading(self._memory(handle).used, self._processes(handle))
        except nvml.NVMLError as error:
            raise _unreadable(gpu, error) from error

    def activity(self, gpu: Gpu) -> GpuActivity:
        """What a card does now; figures that it does not report are None.

        Raises:
            HostError: The driver does not answer, or the card is lost.
        """
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            return read_activity(nvml, handle, self._memory(handle).used)
        except nvml.NVMLError as error:
            raise _unreadable(gpu, error) from error

    def close(self) -> None:
        """Let go of the driver."""
        self._nvml.nvmlShutdown()

    def _at(self, index: int) -> Gpu | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
            return Gpu(uuid, index, name, self._usable(handle))
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_NoPermission):
            return None
        except nvml.NVMLError as error:
            raise _driver_fault(error) from error

    def _usable(self, handle: Any) -> int:
        """Bytes that programs can have, which is what CUDA calls the total: an H200 has 140.4 GiB, and 0.6 reserved."""
        memory = self._memory(handle)
        return int(memory.total - getattr(memory, "reserved", 0))

    def _memory(self, handle: Any) -> Any:
        """Total and used bytes; without what the driver keeps for itself, where it tells that apart (version 2)."""
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch):
            return nvml.nvmlDeviceGetMemoryInfo(handle)

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        """The compute processes; none where the driver will not list them."""
        nvml = self._nvml
        try:
            listed = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):
            return ()
        return tuple(GpuProcess(process.pid, _known_bytes(process.usedGpuMemory)) for process in listed)

    def _ask(self, question: Any) -> Any:
        try:
            return question()
        except self._nvml.NVMLError as error:
            raise _driver_fault(error) from error


def open_nvml() -> NvmlLibrary | None:
    """Open NVML; None on a host without an NVIDIA driver. The caller closes it.

    Raises:
        HostError: nvidia-ml-py is not installed, or library and driver do not fit each other.
    """
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise HostError(
            f"the GPUs of this host cannot be read: {error}", hint="pip install nvidia-ml-py, or use a CPU space"
        ) from error
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return None
    except pynvml.NVMLError as error:
        raise _driver_fault(error) from error
    return NvmlLibrary(pynvml)


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """The cards that a study may use, and remarks for a person about how they were found."""

    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...] = ()


def visible_gpus(nvml: Nvml, variable: str | None) -> VisibleGpus:
    """The cards that `CUDA_VISIBLE_DEVICES` leaves, in its order; all where it is not set.

    As CUDA does, a UUID may be cut short as long as it names one card, and the first name without a card ends the list.

    Args:
        nvml: Knows the cards.
        variable: The variable's value: indices as NVML counts, UUIDs or names of MIG slices, with commas between.
    """
    cards = nvml.gpus()
    if variable is None:
        return VisibleGpus(cards)
    names = [name.strip() for name in variable.split(",")] if variable.strip() else []
    found: list[Gpu] = []
    notes: list[str] = []
    for name in names:
        gpu = _named(nvml, cards, name)
        if gpu is None:
            notes.append(f"{VISIBLE_DEVICES}={variable}: there is no card {name!r}; it and what follows is left out")
            break
        if _is_slice(gpu.uuid):
            notes.append(f"{gpu.uuid} is a slice of {gpu.label}: it is leased by its name and passed on as it stands")
        found.append(gpu)
    if len({card.name for card in cards}) > 1 and any(name.isdigit() for name in names):
        notes.append(f"{VISIBLE_DEVICES}={variable}: indices are taken as nvidia-smi counts; cards differ on this host")
    return VisibleGpus(tuple(dict.fromkeys(found)), tuple(notes))


def _named(nvml: Nvml, cards: Sequence[Gpu], name: str) -> Gpu | None:
    if name.isdigit():
        return next((card for card in cards if card.index == int(name)), None)
    if _is_slice(name):
        return nvml.find(name)
    fitting = [card for card in cards if name and card.uuid.startswith(name)]
    return fitting[0] if len(fitting) == 1 else None


def _is_slice(uuid: str) -> bool:
    return uuid.startswith(_MIG_PREFIX)


def _known_bytes(value: int | None) -> int | None:
    """NVML says all bits set (`NVML_VALUE_NOT_AVAILABLE`) where it does not know; newer bindings say None."""
    return None if value is None or value >= 2**63 else value


def _unreadable(gpu: Gpu, error: Exception) -> HostError:
    return HostError(
        f"{gpu.label} cannot be read: {error}", hint="look at it with nvidia-smi; a lost card needs a reset"
    )


def _driver_fault(error: Exception) -> HostError:
    return HostError(
        f"the NVIDIA driver does not answer: {error}",
        hint="nvidia-smi says the same; after an update of the driver the host needs a restart",
    )
