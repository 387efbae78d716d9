"""The cards of a host: what NVML says of them, what it cannot say, and which of them CUDA_VISIBLE_DEVICES leaves."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType, SimpleNamespace
from typing import cast

import pynvml
import pytest

from optimizer.core.errors import HostError
from optimizer.host.gpu_activity import GpuActivity
from optimizer.host.gpus import Gpu, GpuProcess, GpuReading, NvmlLibrary, open_nvml, visible_gpus
from tests.gpu.fake_nvml import GIB, FakeNvml, card

NOT_AVAILABLE = 2**64 - 1


class Library(SimpleNamespace):
    """pynvml's names and errors over two invented cards; a function set to an error raises it."""

    def __init__(self, **changes) -> None:
        super().__init__(**{name: getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVMLError")})
        self.nvmlMemory_v2 = pynvml.nvmlMemory_v2
        self.shut = False
        self.cards = ["GPU-a", "GPU-b"]
        self.processes = [SimpleNamespace(pid=7, usedGpuMemory=3 * GIB)]
        self.errors = changes

    def __getattribute__(self, name):
        error = super().__getattribute__("__dict__").get("errors", {}).get(name)
        if error is None:
            return super().__getattribute__(name)

        def fail(*args, **kwargs):
            raise error

        return fail

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        self.shut = True

    def nvmlSystemGetDriverVersion(self):
        return "580.159"

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in (*self.cards, "MIG-a/1/0"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):
        return f"GPU-{handle[4]}"

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def nvmlDeviceGetIndex(self, handle):
        return self.cards.index(handle)

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        total = 20 * GIB if handle.startswith("MIG") else 140 * GIB
        return SimpleNamespace(total=total, used=5 * GIB if version else 6 * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return self.processes


def error(code: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(code)


def nvml(**changes) -> NvmlLibrary:
    return NvmlLibrary(cast(ModuleType, Library(**changes)))


A = Gpu("GPU-a", 0, "NVIDIA H200", 140 * GIB)


def test_the_cards_of_a_host():
    library = nvml()
    assert library.gpus() == (A, Gpu("GPU-b", 1, "NVIDIA H200", 140 * GIB))
    assert library.driver_version() == "580.159"
    assert A.label == "GPU 0 (NVIDIA H200)"
    assert library.find("GPU-b").index == 1
    assert library.find("GPU-c") is None


def test_a_reading_holds_memory_and_processes():
    assert nvml().read(A) == GpuReading(5 * GIB, (GpuProcess(7, 3 * GIB),))


@pytest.mark.parametrize("untold", [None, NOT_AVAILABLE])
def test_memory_that_the_driver_does_not_tell_is_none_and_not_a_huge_number(untold):
    library = nvml()
    library._nvml.processes[0].usedGpuMemory = untold
    assert library.read(A).processes == (GpuProcess(7, None),)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH])
def test_an_older_driver_counts_its_own_reserve_in(code):
    library = nvml()
    plain = library._nvml.nvmlDeviceGetMemoryInfo

    def first_version_only(handle, version=None):
        if version:
            raise error(code)
        return plain(handle)

    library._nvml.nvmlDeviceGetMemoryInfo = first_version_only
    assert library.read(A).used_bytes == 6 * GIB


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
def test_processes_that_may_not_be_listed_are_none(code):
    assert nvml(nvmlDeviceGetComputeRunningProcesses=error(code)).read(A) == GpuReading(5 * GIB)


def test_a_lost_card_is_left_out_of_the_list_and_told_when_it_is_read():
    lost = error(pynvml.NVML_ERROR_GPU_IS_LOST)
    library = nvml(nvmlDeviceGetHandleByIndex=lost, nvmlDeviceGetHandleByUUID=lost)
    assert library.gpus() == ()
    with pytest.raises(HostError, match=r"GPU 0 \(NVIDIA H200\) cannot be read: .*lost"):
        library.read(A)


class Active(Library):
    """Cards that work, and do not tell everything."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    reasons = 0x4 | 0x1 | 0x40

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=97, memory=41)

    def nvmlDeviceGetPowerUsage(self, handle):
        return 650_500

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return 12_000

    def nvmlDeviceGetClockInfo(self, handle, which):
        return {1: 1980, 2: 3201}[which]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return 0x80


def active(**changes) -> NvmlLibrary:
    return NvmlLibrary(cast(ModuleType, Active(**changes)))


def test_what_a_card_does_is_told_in_shares_watts_and_joules():
    held = frozenset({"power cap", "hardware thermal"})
    assert active().activity(A) == GpuActivity(0.97, 0.41, 5 * GIB, 650.5, 12.0, 1980.0, 3201.0, held)


def test_an_idle_card_is_not_throttled():
    library = active()
    library._nvml.reasons = 0x1
    assert library.activity(A).throttled_by == frozenset()


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("nvmlDeviceGetUtilizationRates", ("util", "mem_util")),
        ("nvmlDeviceGetPowerUsage", ("power_w",)),
        ("nvmlDeviceGetTotalEnergyConsumption", ("energy_j",)),
        ("nvmlDeviceGetClockInfo", ("sm_clock_mhz", "mem_clock_mhz")),
        ("nvmlDeviceGetCurrentClocksEventReasons", ("throttled_by",)),
    ],
)
def test_a_figure_that_a_card_lacks_is_none_and_costs_no_other(call, fields, code):
    activity = active(**{call: error(code)}).activity(A)
    lacking = {field.name for field in dataclasses.fields(activity) if getattr(activity, field.name) is None}
    assert lacking == set(fields)


@pytest.mark.parametrize("missing", [AttributeError(), error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)])
def test_older_drivers_tell_reasons_under_an_older_name(missing):
    activity = active(nvmlDeviceGetCurrentClocksEventReasons=missing).activity(A)
    assert activity.throttled_by == frozenset({"power brake"})


def test_a_lost_card_does_nothing_and_is_told():
    with pytest.raises(HostError, match=r"GPU 0 \(NVIDIA H200\) cannot be read: .*lost"):
        active(nvmlDeviceGetPowerUsage=error(pynvml.NVML_ERROR_GPU_IS_LOST)).activity(A)


@pytest.mark.parametrize("call", ["nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_a_driver_that_fails_is_the_hosts_fault(call):
    with pytest.raises(HostError, match="driver does not answer") as caught:
        nvml(**{call: error(pynvml.NVML_ERROR_UNKNOWN)}).gpus()
    assert caught.value.exit_code == 4


@pytest.fixture
def installed(monkeypatch):
    """Puts a library in pynvml's place."""

    def install(library):
        monkeypatch.setitem(sys.modules, "pynvml", library)

    return install


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_a_host_without_a_driver_has_no_nvml(installed, code):
    installed(Library(nvmlInit=error(code)))
    assert open_nvml() is None


def test_a_driver_that_does_not_fit_its_library_is_named_with_what_to_do(installed):
    installed(Library(nvmlInit=error(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)))
    with pytest.raises(HostError, match="driver does not answer") as caught:
        open_nvml()
    assert "restart" in caught.value.hint


def test_a_missing_binding_is_named_with_what_to_do(installed):
    installed(None)  # an import of it fails then
    with pytest.raises(HostError, match="pynvml") as caught:
        open_nvml()
    assert "nvidia-ml-py" in caught.value.hint


def test_nvml_is_let_go(installed):
    library = Library()
    installed(library)
    open_nvml().close()
    assert library.shut


# --- which cards a study may use

FOUR = FakeNvml(tuple(card(index) for index in range(4)))


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2", [2]),
        (" 3 , 1", [3, 1]),
        ("GPU-00000002-feed,0", [2, 0]),
        ("GPU-00000003", [3]),  # cut short, and still one card's
        ("1,1", [1]),
    ],
)
def test_the_variable_chooses_cards_in_its_order(variable, indices):
    chosen = visible_gpus(FOUR, variable)
    assert [gpu.index for gpu in chosen.gpus] == indices
    assert chosen.notes == ()


@pytest.mark.parametrize(("variable", "bad"), [("1,-1,2", "-1"), ("1,9,2", "9"), ("1,GPU-0,2", "GPU-0"), ("1,,2", "")])
def test_the_first_name_without_a_card_ends_the_list_as_in_cuda(variable, bad):
    chosen = visible_gpus(FOUR, variable)
    assert [gpu.index for gpu in chosen.gpus] == [1]
    assert f"no card {bad!r}" in chosen.notes[0]


def test_a_slice_of_a_card_is_passed_on_with_a_note():
    chosen = visible_gpus(nvml(), "MIG-a/1/0")
    (part,) = chosen.gpus
    assert (part.uuid, part.index, part.total_bytes) == ("MIG-a/1/0", 0, 20 * GIB)
    assert "slice of GPU 0" in chosen.notes[0]


def test_indices_on_a_host_with_unlike_cards_are_explained():
    mixed = FakeNvml((card(0), card(1, name="NVIDIA L4")))
    assert "as nvidia-smi counts" in visible_gpus(mixed, "1").notes[0]
    assert visible_gpus(mixed, "GPU-00000001").notes == ()
    assert visible_gpus(mixed, None).notes == ()
