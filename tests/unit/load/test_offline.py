"""All requests at once: none waits for another, the window is the time of the whole batch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from optimizer.core.measurement import UNFINISHED
from optimizer.core.stop_reason import StopReason
from optimizer.load import RequestPlan
from optimizer.load.offline import run_offline


async def test_every_request_is_under_way_at_once_and_the_last_ends_the_window(
    serve: Any, answers: Any, make_workload: Any
) -> None:
    workload, marks = make_workload(), []
    # Half a second an answer: the last request is sent well before the first is answered.
    async with serve(answers.well_behaved(gap_s=0.1)) as engine:
        load = await run_offline(
            engine.endpoint,
            RequestPlan(workload, 1, 2, 512),
            60,
            limit_s=20.0,
            on_window_open=lambda: marks.append("open"),
            on_window_close=lambda: marks.append("close"),
        )
    assert engine.most_under_way == 60
    assert (len(load.errors), bool(load.ok.all()), load.window_requests) == (60, True, 60)
    assert load.window_output_tokens == 60 * 5, "the last token counts"
    assert load.window_s == pytest.approx(float(load.last_token_s.max() - load.window_start_s), abs=0.2)
    assert (load.scheduled_s == load.window_start_s).all(), "latency counts from the start of the batch"
    assert load.stopped_by is StopReason.WINDOW
    assert marks == ["open", "close"]


async def test_what_does_not_end_in_time_has_failed(serve: Any, answers: Any, make_workload: Any) -> None:
    async with serve(answers.never_answers) as engine:
        load = await run_offline(engine.endpoint, RequestPlan(make_workload(), 1, 2, 512), 3, limit_s=0.2)
        await engine.until_under_way(0)
    assert load.errors == (UNFINISHED,) * 3
    assert load.stopped_by is StopReason.BUDGET


async def test_cancelling_closes_every_connection(serve: Any, answers: Any, make_workload: Any) -> None:
    async with serve(answers.never_answers) as engine:
        work = asyncio.create_task(
            run_offline(engine.endpoint, RequestPlan(make_workload(), 1, 2, 512), 5, limit_s=60.0)
        )
        await engine.until_under_way(5)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await engine.until_under_way(0)


async def test_refused_requests_are_counted_as_failed(serve: Any, answers: Any, make_workload: Any) -> None:
    plan = RequestPlan(make_workload(), 1, 2, 512, max_model_len=4)
    async with serve(answers.well_behaved()) as engine:
        load = await run_offline(engine.endpoint, plan, 4, limit_s=5.0)
    assert engine.bodies == []
    assert all(error is not None and error.startswith("longer than max-model-len") for error in load.errors)
