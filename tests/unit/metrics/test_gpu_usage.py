"""Samples of cards, reduced to the window."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optimizer.core.measurement import GpuUsage
from optimizer.host.gpu_activity import GpuActivity
from optimizer.metrics.gpu_usage import GpuMeter, GpuSample, reduce_gpu
from tests.gpu.fake_nvml import GIB, FakeNvml

FULL = GpuActivity(
    util=0.9,
    mem_util=0.4,
    used_bytes=100 * GIB,
    power_w=600.0,
    energy_j=1000.0,
    sm_clock_mhz=1980.0,
    mem_clock_mhz=3201.0,
    throttled_by=frozenset(),
)


def test_the_cards_own_counter_makes_energy_and_power() -> None:
    notes: list[str] = []
    held = replace(FULL, util=0.7, energy_j=2400.0, used_bytes=104 * GIB, throttled_by=frozenset({"power cap"}))
    usage = reduce_gpu([GpuSample(10.0, (FULL,)), GpuSample(12.0, (held,))], notes)
    assert usage.gpu_util_mean == pytest.approx(0.8)
    assert (usage.gpu_energy_j, usage.gpu_power_w_mean) == (1400.0, 700.0)
    assert usage.gpu_memory_used_max_bytes == 104 * GIB
    assert (usage.gpu_throttled_share, usage.throttle_reasons) == (0.5, ("power cap",))
    assert notes == []


def test_cards_add_up_in_power_and_are_averaged_in_use() -> None:
    other = replace(FULL, util=0.1, energy_j=0.0)
    later = (replace(FULL, energy_j=1200.0), replace(other, energy_j=100.0))
    usage = reduce_gpu([GpuSample(0.0, (FULL, other)), GpuSample(1.0, later)], [])
    assert usage.gpu_energy_j == 300.0
    assert usage.gpu_util_mean == pytest.approx(0.5)
    assert usage.gpu_memory_used_max_bytes == 200 * GIB


@pytest.mark.parametrize("counters", [(None, None), (1000.0, 10.0)])
def test_without_a_counter_that_goes_up_the_mean_power_is_taken(counters: tuple[float | None, float | None]) -> None:
    first, last = (replace(FULL, energy_j=energy_j) for energy_j in counters)
    usage = reduce_gpu([GpuSample(0.0, (first,)), GpuSample(3.0, (replace(last, power_w=400.0),))], [])
    assert (usage.gpu_power_w_mean, usage.gpu_energy_j) == (500.0, 1500.0)


def test_what_a_card_does_not_report_is_none_with_a_note() -> None:
    notes: list[str] = []
    bare = GpuActivity(used_bytes=5)
    usage = reduce_gpu([GpuSample(0.0, (bare,)), GpuSample(1.0, (bare,))], notes)
    assert usage == GpuUsage(gpu_memory_used_max_bytes=5)
    assert notes == [f"GPU {name}: not reported by the driver" for name in ("util", "power_w", "energy_j")]


def test_one_card_that_does_not_tell_leaves_no_sum() -> None:
    half = replace(FULL, power_w=None, energy_j=None)
    usage = reduce_gpu([GpuSample(0.0, (FULL, half)), GpuSample(1.0, (FULL, half))], [])
    assert (usage.gpu_power_w_mean, usage.gpu_energy_j) == (None, None)


def test_one_sample_is_none() -> None:
    notes: list[str] = []
    assert reduce_gpu([GpuSample(0.0, (FULL,))], notes) == GpuUsage()
    assert notes == ["the GPUs were sampled 1 times in the window; 2 are needed"]


def test_a_driver_that_fails_is_asked_no_more() -> None:
    nvml = FakeNvml()
    nvml.doing[nvml.cards[0].uuid] = FULL
    meter = GpuMeter(nvml, nvml.cards)
    meter.sample(1.0)
    nvml.broken = "the NVIDIA driver does not answer"
    meter.sample(2.0)
    nvml.broken = None
    meter.sample(3.0)
    assert [sample.at_s for sample in meter.samples] == [1.0]
    assert meter.trouble == "the NVIDIA driver does not answer"


def test_without_cards_nothing_is_asked() -> None:
    meter = GpuMeter(FakeNvml(broken="must not be asked"), ())
    meter.sample(1.0)
    assert (meter.samples, meter.trouble) == ([], None)
