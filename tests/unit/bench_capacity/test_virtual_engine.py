"""The benchmark's engine in virtual time, beside the simulated engine's own scheduler."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from optimizer.core.measurement import FloatArray
from optimizer.engine.simulated.scheduler import Scheduler
from optimizer.engine.simulated.step import SchedulerLimits
from optimizer.engine.simulated.step_time import StepTimeModel
from optimizer.load.arrival_process import ClosedLoop, GammaArrivals
from tests.bench.capacity_scenes import Lengths, Scene
from tests.bench.virtual_engine import VirtualEngine

SCENE = Scene("few slots", ("p99_e2e_ms=1",), 1.0, 1.0, Lengths(1, 900, 200, 0.8), Lengths(1, 40), 6, 512, 920, 60_000)


def scheduled(scene: Scene, due_s: FloatArray, prompts: list[int], answers: list[int]) -> tuple[FloatArray, FloatArray]:
    """First and last tokens by the scheduler."""
    limits = SchedulerLimits(
        scene.max_num_seqs,
        scene.max_num_batched_tokens,
        scene.max_model_len,
        16,
        math.ceil(scene.pool_tokens / 16) + 1,
        enable_prefix_caching=False,
    )
    scheduler, now_s, sent = Scheduler(limits, StepTimeModel()), 0.0, 0
    first_s, last_s = np.full(due_s.size, np.nan), np.full(due_s.size, np.nan)
    while np.isnan(last_s).any():
        while sent < due_s.size and due_s[sent] <= now_s:
            scheduler.add(str(sent), [1] * prompts[sent], answers[sent])
            sent += 1
        if not scheduler.has_work:
            now_s = float(due_s[sent])
            continue
        step = scheduler.schedule()
        now_s += step.duration_s
        for output in scheduler.complete(step):
            number = int(output.request_id)
            first_s[number] = now_s if math.isnan(first_s[number]) else first_s[number]
            if output.finished:
                last_s[number] = now_s
    return first_s, last_s


@pytest.mark.parametrize("rate", [2.0, 12.0, 60.0])
def test_times_are_those_of_the_scheduler_to_the_last_bit(rate: float) -> None:
    engine = VirtualEngine(SCENE, GammaArrivals(kind="gamma", rate_per_s=rate, burstiness=0.5), seed=3)
    due_s, first_s, last_s = engine.requests(200 / rate, drained=True)
    prompts, answers = engine.tokens(due_s.size + 400)
    # Requests that come while the last ones run slow these down, so more than the counted ones are played.
    more_s, _, _ = engine.requests(300 / rate, drained=False)
    expected = scheduled(SCENE, more_s, prompts.tolist(), answers.tolist())
    assert np.array_equal(first_s, expected[0][: due_s.size])
    assert np.array_equal(last_s, expected[1][: due_s.size])


def test_a_closed_loop_keeps_its_requests_under_way() -> None:
    engine = VirtualEngine(SCENE, ClosedLoop(kind="closed_loop", in_flight=9), seed=3)
    due_s, _, last_s = engine.requests(20.0, drained=True)
    for at_s in np.linspace(1.0, 19.0, 40):
        assert np.count_nonzero((due_s <= at_s) & (last_s > at_s)) == 9


def test_stalls_and_crowding_make_it_slower() -> None:
    arrivals = GammaArrivals(kind="gamma", rate_per_s=12.0, burstiness=1.0)
    means = []
    for scene in (SCENE, replace(SCENE, stalls_per_s=0.5, stall_s=0.5), replace(SCENE, crowding=1.0)):
        due_s, _, last_s = VirtualEngine(scene, arrivals, seed=3).requests(60.0, drained=True)
        means.append(float((last_s - due_s).mean()))
    assert means[0] < min(means[1:])


@pytest.mark.parametrize(
    "scene", [replace(SCENE, pool_tokens=5000), replace(SCENE, max_num_batched_tokens=6)], ids=["preempts", "splits"]
)
def test_an_engine_that_may_preempt_or_split_a_batch_is_refused(scene: Scene) -> None:
    with pytest.raises(ValueError, match="run short"):
        VirtualEngine(scene, ClosedLoop(kind="closed_loop", in_flight=2), seed=0)
