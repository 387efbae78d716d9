"""Cores: the client gets the last one, the engine the rest."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.host.cpus import CpuSplit, pin_this_process, split_cpus


@pytest.mark.parametrize(
    ("allowed", "split"),
    [
        ({3}, CpuSplit((3,), (3,))),
        ({1, 0}, CpuSplit((0,), (1,))),
        ({7, 2, 4, 5}, CpuSplit((2, 4, 5), (7,))),
    ],
)
def test_split(monkeypatch, allowed, split):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: allowed)
    assert split_cpus() == split


@given(st.sets(st.integers(0, 255), min_size=2))
def test_two_or_more_cores_are_shared_out_whole(allowed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _pid: allowed)
        split = split_cpus()
    assert set(split.engine) | set(split.client) == allowed
    assert not set(split.engine) & set(split.client)
    assert len(split.client) == 1


def test_pinning_holds_for_threads_that_start_later():
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    try:
        pin_this_process((max(before),))
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    finally:
        os.sched_setaffinity(0, before)
    assert seen == [{max(before)}]
