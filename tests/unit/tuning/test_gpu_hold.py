"""A study's cards: clean before a launch and after a stop, set aside when one of ours cannot be ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from optimizer.core.errors import HostError
from optimizer.core.failure import Blame, FailureKind
from optimizer.core.trial import Stage
from optimizer.host.gpus import Gpu
from optimizer.host.leases import GpuLease
from optimizer.tuning.gpu_hold import TOLERANCE_BYTES, GpuHold
from tests.gpu.fake_nvml import GIB, FakeClock, FakeNvml, card, tells

ENGINE, STRANGER = 40, 7000
FIRST, SECOND = card(0), card(1)


class Lease(GpuLease):
    """A lease without a file."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.touched = self.released = 0

    def touch(self) -> None:
        self.touched += 1

    def release(self) -> None:
        self.released += 1


@dataclass
class Desk:
    """Gives leases of cards that nobody else holds, the first ones."""

    held_by_others: set[str] = field(default_factory=set)
    leases: list[Lease] = field(default_factory=list)

    def take(self, gpus: Sequence[Gpu], count: int) -> list[GpuLease]:
        free = [gpu for gpu in gpus if gpu.uuid not in self.held_by_others]
        if len(free) < count:
            raise HostError("no card is free")
        taken = [Lease(gpu) for gpu in free[:count]]
        self.leases += taken
        return [*taken]


@dataclass
class Bench:
    nvml: FakeNvml
    clock: FakeClock = field(default_factory=FakeClock)
    desk: Desk = field(default_factory=Desk)

    def hold(self, count: int = 1) -> GpuHold:
        return GpuHold(
            self.nvml,
            self.nvml.cards,
            count,
            take=self.desk.take,
            tell_ours=tells(ENGINE),
            now_s=self.clock.now_s,
            sleep=self.clock.sleep,
        )


@pytest.fixture
def bench() -> Bench:
    return Bench(FakeNvml((FIRST, SECOND)))


def launch_failure(hold: GpuHold, *gpus: Gpu):
    return asyncio.run(hold.clean_before_launch(gpus or (FIRST,)))[1]


def stop_failure(hold: GpuHold, *gpus: Gpu):
    return asyncio.run(hold.clean_after_stop(gpus or (FIRST,)))[2]


def test_a_clean_card_costs_one_look_and_no_wait(bench):
    hold = bench.hold()
    before = bench.nvml.reads
    assert launch_failure(hold) is None
    assert (bench.nvml.reads - before, bench.clock.now) == (1, 0.0)


def test_memory_that_comes_back_late_is_waited_for(bench):
    hold = bench.hold()
    bench.nvml.enters(ENGINE, 120 * GIB)
    bench.nvml.leaves_memory_behind(ENGINE)
    bench.clock.at(3.0, lambda: bench.nvml.used.clear())
    looks, took_s, failure = asyncio.run(hold.clean_after_stop((FIRST,)))
    assert failure is None
    assert 3.0 <= took_s < 3.5
    assert looks[0].used_bytes == 0


def test_an_engine_that_takes_a_moment_to_vanish_is_waited_for(bench):
    hold = bench.hold()
    bench.nvml.enters(ENGINE, 120 * GIB)
    bench.clock.at(9.0, lambda: bench.nvml.leaves(ENGINE))
    assert stop_failure(hold) is None
    assert hold.gpus == (FIRST,)


# --- others on the card


@pytest.mark.parametrize("lists_pids", [True, False])
def test_a_co_tenant_that_comes_later_is_busy_and_the_card_is_kept(bench, lists_pids):
    hold = bench.hold()
    bench.nvml.lists_pids = lists_pids
    bench.nvml.enters(STRANGER, 40 * GIB)
    failure = stop_failure(hold)
    assert (failure.kind, failure.blame, failure.stage) == (FailureKind.GPU_BUSY, Blame.HOST, Stage.STOPPING)
    assert failure.retryable
    assert "40.0 GiB of GPU 0 (NVIDIA H200)" in failure.detail
    assert failure.facts == {"others_gib": 40.0}
    expected = f"pid {STRANGER} (" if lists_pids else "no process is listed"
    assert expected in failure.evidence[0]
    assert hold.gpus == (FIRST,)
    bench.nvml.leaves(STRANGER)
    assert launch_failure(hold) is None


@pytest.mark.parametrize(
    ("rise_bytes", "is_busy"), [(TOLERANCE_BYTES, False), (TOLERANCE_BYTES + 1, True), (-GIB, False)]
)
def test_the_tolerance_is_counted_from_the_level_before_the_first_launch(bench, rise_bytes, is_busy):
    bench.nvml.used[FIRST.uuid] = 5 * GIB
    hold = bench.hold()
    bench.nvml.used[FIRST.uuid] += rise_bytes
    assert (launch_failure(hold) is not None) is is_busy


def test_a_tenant_that_leaves_and_comes_back_is_a_rise(bench):
    bench.nvml.enters(STRANGER, 30 * GIB)
    hold = bench.hold()
    assert launch_failure(hold) is None
    bench.nvml.leaves(STRANGER)
    assert launch_failure(hold) is None
    bench.nvml.enters(STRANGER, 30 * GIB)
    assert launch_failure(hold).kind is FailureKind.GPU_BUSY


def test_a_tenant_that_was_there_before_is_told_to_the_user(bench):
    bench.nvml.enters(STRANGER, 30 * GIB)
    assert bench.hold().notes == (
        "GPU 0 (NVIDIA H200) is leased for this study; 30.0 GiB of it were in use before, by others",
    )


def test_a_small_use_before_is_not_worth_a_remark(bench):
    bench.nvml.used[FIRST.uuid] = GIB - 1
    assert bench.hold().notes == ("GPU 0 (NVIDIA H200) is leased for this study",)


def test_a_tenant_whose_memory_is_not_told_is_named_all_the_same(bench):
    hold = bench.hold()
    bench.nvml.used[FIRST.uuid] = 9 * GIB
    bench.nvml.enters(STRANGER, None)
    assert "an unknown amount" in launch_failure(hold).evidence[0]


def test_each_launch_in_a_row_waits_longer_for_a_busy_card_and_a_clean_one_starts_over(bench):
    hold = bench.hold()
    bench.nvml.enters(STRANGER, 40 * GIB)

    def waited_s() -> float:
        before = bench.clock.now
        assert launch_failure(hold).kind is FailureKind.GPU_BUSY
        return bench.clock.now - before

    assert [round(waited_s()) for _ in range(4)] == [10, 30, 90, 90]
    bench.nvml.leaves(STRANGER)
    assert launch_failure(hold) is None
    bench.nvml.enters(STRANGER, 40 * GIB)
    assert round(waited_s()) == 10


def test_a_card_that_becomes_free_while_it_is_waited_for_is_used(bench):
    hold = bench.hold()
    bench.nvml.enters(STRANGER, 40 * GIB)
    assert launch_failure(hold) is not None
    bench.clock.at(bench.clock.now + 20.0, lambda: bench.nvml.leaves(STRANGER))
    assert launch_failure(hold) is None


def test_of_two_cards_the_busy_one_is_named(bench):
    hold = bench.hold(2)
    bench.nvml.enters(STRANGER, 40 * GIB, SECOND)
    failure = launch_failure(hold, FIRST, SECOND)
    assert "GPU 1" in failure.detail
    assert "GPU 0" not in failure.detail


# --- ours that cannot be ended


@pytest.mark.parametrize("check", [launch_failure, stop_failure])
def test_a_process_of_ours_that_stays_costs_the_card(bench, check: Callable):
    hold = bench.hold()
    bench.nvml.enters(ENGINE, 120 * GIB)
    failure = check(hold)
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.HOST_FAULT, Blame.HOST, True)
    assert f"process {ENGINE}" in failure.detail
    assert "set aside for the rest of this run" in failure.detail
    assert hold.gpus == ()
    assert hold.cards_for(1) == (SECOND,), "the study goes on elsewhere"
    assert launch_failure(hold, SECOND) is None
    assert bench.desk.leases[0].released == 0, "nobody else could use it either"


def test_without_another_card_the_study_pauses_and_the_process_is_named(bench):
    hold = bench.hold()
    bench.desk.held_by_others.add(SECOND.uuid)
    bench.nvml.enters(ENGINE, 120 * GIB)
    assert stop_failure(hold) is not None
    with pytest.raises(HostError, match=rf"process {ENGINE} .* cannot be ended.*no card is free") as caught:
        hold.cards_for(1)
    assert caught.value.exit_code == 4
    assert "same command" in caught.value.hint


def test_an_orphan_of_an_earlier_run_does_not_raise_the_idle_level(bench):
    bench.nvml.enters(ENGINE, 120 * GIB)
    hold = bench.hold()
    bench.clock.at(2.0, lambda: bench.nvml.leaves(ENGINE))
    assert launch_failure(hold) is None
    bench.nvml.enters(STRANGER, 40 * GIB)
    assert launch_failure(hold).kind is FailureKind.GPU_BUSY


# --- leases


def test_only_as_many_cards_as_needed_are_leased_and_given_back(bench):
    hold = bench.hold()
    assert hold.environment == {"CUDA_VISIBLE_DEVICES": FIRST.uuid}
    hold.close()
    assert [(lease.gpu, lease.released) for lease in bench.desk.leases] == [(FIRST, 1)]


def test_a_trial_gets_as_many_cards_as_it_takes(bench):
    hold = bench.hold(2)
    assert hold.cards_for(1) == (FIRST,)
    assert hold.cards_for(2) == (FIRST, SECOND)
    assert hold.environment == {"CUDA_VISIBLE_DEVICES": f"{FIRST.uuid},{SECOND.uuid}"}


def test_too_few_cards_are_told_as_the_desk_tells_it(bench):
    with pytest.raises(HostError, match="no card is free"):
        bench.hold(3)


def test_a_driver_that_fails_leaves_no_lease_behind(bench):
    bench.nvml.broken = "the card is lost"
    with pytest.raises(HostError, match="the card is lost"):
        bench.hold(2)
    assert [lease.released for lease in bench.desk.leases] == [1, 1]


def test_every_look_keeps_the_lease_fresh(bench):
    hold = bench.hold()
    hold.look(FIRST)
    hold.look(FIRST)
    assert bench.desk.leases[0].touched == 3
