"""The hit rate that a workload implies is the one that an engine with room for everything reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimizer.engine.simulated.scheduler import Scheduler
from optimizer.engine.simulated.step import SchedulerLimits
from optimizer.engine.simulated.step_time import StepTimeModel
from optimizer.load import RequestPlan, Workload
from optimizer.load.hit_rate import expected_prefix_hit_rate
from optimizer.load.planned import PlannedRequest
from optimizer.load.shapes import request_shapes

COUNT = 40


def roomy_engine(block_size: int) -> Scheduler:
    limits = SchedulerLimits(
        max_num_seqs=64,
        max_num_batched_tokens=4096,
        max_model_len=4096,
        block_size=block_size,
        num_gpu_blocks=200_000,
    )
    return Scheduler(limits, StepTimeModel())


def serve(engine: Scheduler, request: PlannedRequest, name: str) -> list[int]:
    assert isinstance(request.prompt, list)
    engine.add(name, request.prompt, request.output_tokens)
    answer: list[int] = []
    while engine.has_work:
        for output in engine.complete(engine.schedule()):
            answer += output.token_ids
    return answer


def served_hit_rate(workload: Workload, block_size: int) -> float:
    plan = RequestPlan(workload, 0, 5, 512)
    engine = roomy_engine(block_size)
    for number in range(plan.shared_prefixes):
        serve(engine, plan.warm_up_request(number), f"w{number}")
    before_queries, before_hits = engine.stats.prefix_cache_queries, engine.stats.prefix_cache_hits
    for number in range(COUNT):
        history: list[list[int]] = []
        while True:
            request = plan.request(number, history)
            history.append(serve(engine, request, f"{number}-{len(history)}"))
            if request.think_s is None:
                break
    queries = engine.stats.prefix_cache_queries - before_queries
    return (engine.stats.prefix_cache_hits - before_hits) / queries


@pytest.mark.parametrize("block_size", [4, 16, 128])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"shared_prefix": {"prefixes": 3, "tokens": 64}},
        {"shared_prefix": {"prefixes": 3, "tokens": 70}},
        {"shared_prefix": {"prefixes": 1, "tokens": 128}, "prompt_tokens": 1},
        {"sessions": {"turns": "1-5"}},
        {"sessions": {"turns": 4}, "shared_prefix": {"prefixes": 2, "tokens": 33}},
        {"sessions": {"turns": 5, "keep_turns": 2}, "shared_prefix": {"prefixes": 2, "tokens": 33}},
        {"sessions": {"turns": 3, "keep_turns": 0}, "shared_prefix": {"prefixes": 2, "tokens": 48}},
    ],
)
def test_it_is_what_a_roomy_cache_answers(
    make_workload: Callable[..., Workload], parts: dict[str, Any], block_size: int
) -> None:
    workload = make_workload(**{"prompt_tokens": "10-60", "output_tokens": "5-40", **parts})
    expected = expected_prefix_hit_rate(workload, block_size, count=COUNT)
    assert expected == pytest.approx(served_hit_rate(workload, block_size))


@pytest.mark.parametrize("sessions", [None, {"turns": "1-5", "keep_turns": 2}])
def test_shapes_are_those_of_the_requests(
    make_workload: Callable[..., Workload], sessions: dict[str, Any] | None
) -> None:
    workload = make_workload(
        prompt_tokens="10-60", output_tokens="5-40", sessions=sessions, shared_prefix={"prefixes": 2, "tokens": 9}
    )
    shapes = request_shapes(workload, 7, 20)
    plan = RequestPlan(workload, 7, 1, 512)
    made = []
    for number in range(20):
        history: list[list[int]] = []
        while True:
            request = plan.request(number, history)
            made.append((len(request.prompt), request.output_tokens))
            history.append([1] * request.output_tokens)
            if request.think_s is None:
                break
    assert list(zip(shapes.prompt_tokens, shapes.output_tokens, strict=True)) == made
    assert max(shapes.prompt_tokens) <= workload.longest_prompt_tokens


def test_of_texts_from_a_file_it_is_not_known(make_workload: Callable[..., Workload], tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "hello", "output_tokens": 5}', encoding="utf-8")
    workload = make_workload(source={"kind": "jsonl", "path": str(path)}, prompt_tokens=None, output_tokens=None)
    assert expected_prefix_hit_rate(workload, 16) is None


def test_of_recorded_lengths_it_is_that_of_the_shared_prefix(
    make_workload: Callable[..., Workload], tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("timestamp_s,prompt_tokens,output_tokens\n0,36,5\n1,4,5\n", encoding="utf-8")
    workload = make_workload(
        source={"kind": "trace", "path": str(path)},
        arrivals={"kind": "trace"},
        prompt_tokens=None,
        output_tokens=None,
        shared_prefix={"prefixes": 1, "tokens": 20},
    )
    assert expected_prefix_hit_rate(workload, 16, count=2) == pytest.approx(32 / (56 + 24))
