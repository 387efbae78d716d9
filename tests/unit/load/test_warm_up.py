"""The warm-up proves a real completion, meets every prefix, and ends in time."""

from __future__ import annotations

from typing import Any

import pytest

from optimizer.load import LoadFailed, RequestPlan
from optimizer.load.warm_up import warm_up


async def test_every_prefix_is_sent_first_then_the_rest(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload(shared_prefix={"prefixes": 3, "tokens": 16}, warmup={"requests": 8, "max_s": 30})
    plan = RequestPlan(workload, 1, 2, 512)
    async with serve(answers.well_behaved(gap_s=0.02)) as engine:
        assert await warm_up(engine.endpoint, workload, plan) == 8
    prefixes = [tuple(body["prompt"][:16]) for body in engine.bodies]
    assert len(set(prefixes[:3])) == 3
    assert set(prefixes[3:]) <= set(prefixes[:3])
    assert engine.most_under_way == 4


async def test_more_prefixes_than_requests_are_all_sent(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload(shared_prefix={"prefixes": 9, "tokens": 4}, warmup={"requests": 2, "max_s": 5})
    async with serve(answers.well_behaved()) as engine:
        assert await warm_up(engine.endpoint, workload, RequestPlan(workload, 1, 2, 512)) == 9


async def test_no_success_is_told_with_its_evidence(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload()
    async with serve(answers.raw(b"no", status=500)) as engine:
        with pytest.raises(LoadFailed, match="none of 6 warm-up requests succeeded") as caught:
            await warm_up(engine.endpoint, workload, RequestPlan(workload, 1, 2, 512))
    assert caught.value.evidence == ("6 x HTTP 500: no",)


async def test_an_engine_that_hangs_does_not_hold_it_up(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload(warmup={"requests": 6, "max_s": 0.1})
    async with serve(answers.never_answers) as engine:
        with pytest.raises(LoadFailed, match=r"none of 4 .* within the time allowed") as caught:
            await warm_up(engine.endpoint, workload, RequestPlan(workload, 1, 2, 512))
    assert caught.value.evidence == ("4 x unfinished",)
