"""The closed loop against a real server: what is counted, when the window closes, and how it ends in trouble."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from optimizer.load import LoadFailed, RequestPlan, Workload
from optimizer.load.driver import FAILURES_IN_A_ROW, run_load
from optimizer.load.progress import LoadProgress


def plan_of(workload: Workload) -> RequestPlan:
    return RequestPlan(workload, 1, 2, 512)


async def test_a_window_counts_what_was_scheduled_in_it(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload(window={"min_s": 0.2, "max_s": 30, "min_requests": 10})
    marks: list[tuple[str, float]] = []
    progress: list[LoadProgress] = []
    async with serve(answers.well_behaved(gap_s=0.01)) as engine:
        result = await run_load(
            engine.endpoint,
            workload,
            plan_of(workload),
            on_progress=progress.append,
            on_window_open=lambda: marks.append(("open", time.monotonic())),
            on_window_close=lambda: marks.append(("close", time.monotonic())),
        )
    end_s = result.window_start_s + result.window_s
    assert result.ok.all()
    assert len(result.errors) >= workload.window.min_requests
    assert 0.2 <= result.window_s < 15
    assert ((result.scheduled_s >= result.window_start_s) & (result.scheduled_s < end_s)).all()
    assert (result.sent_s >= result.scheduled_s).all()
    assert (result.first_token_s > result.sent_s).all()
    assert (result.output_tokens == 5).all()
    assert result.itl_s.size == 4 * len(result.errors)
    assert (result.e2e_s >= 0.045).all()
    assert engine.most_under_way == 4
    assert [name for name, _ in marks] == ["open", "close"]
    assert result.window_start_s <= marks[0][1] < end_s - 1e-6 <= marks[1][1]
    assert progress
    assert progress[0].window_s == 0.2
    # Four slots, each 5 tokens in at least 50 ms: what arrives in the window cannot exceed that rate.
    assert 0 < result.window_output_tokens <= 4 * (result.window_s / 0.01 + 1)
    assert 0 < result.window_requests <= len(result.errors) + 4


async def test_every_run_counts_the_same_requests_in_the_same_order(
    serve: Any, answers: Any, make_workload: Any
) -> None:
    workload = make_workload(prompt_tokens={"kind": "uniform", "low": 1, "high": 5000})
    plan = plan_of(workload)
    planned = [len(plan.request(number).prompt) for number in range(10)]
    for gap_s in (0.0, 0.01):
        async with serve(answers.well_behaved(gap_s=gap_s)) as engine:
            result = await run_load(engine.endpoint, workload, plan)
        assert result.prompt_tokens[:10].tolist() == planned


async def test_the_window_stays_open_for_its_requests_but_not_beyond_its_longest(
    serve: Any, answers: Any, make_workload: Any
) -> None:
    patient = make_workload(window={"min_s": 0.01, "max_s": 10, "min_requests": 30})
    hasty = make_workload(window={"min_s": 0.01, "max_s": 0.2, "min_requests": 100_000})
    async with serve(answers.well_behaved(gap_s=0.005)) as engine:
        long = await run_load(engine.endpoint, patient, plan_of(patient))
        capped = await run_load(engine.endpoint, hasty, plan_of(hasty))
    assert len(long.errors) >= 30
    assert long.window_s < 5
    assert 0.2 <= capped.window_s < 5


async def test_what_never_ends_is_a_failure_after_the_drain(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload(window={"min_s": 0.1, "max_s": 0.3, "min_requests": 1}, warmup={"requests": 1, "max_s": 2})
    good, opened = answers.well_behaved(gap_s=0.002), False
    served = iter(range(4))

    def open_window() -> None:
        nonlocal opened
        opened = True

    async def stalls_soon_after(request: Any, body: Any) -> Any:
        # Up to four requests of the ramp may still be under way when the window opens; those are served.
        stalled = opened and next(served, None) is None
        return await (answers.never_answers if stalled else good)(request, body)

    async with serve(stalls_soon_after) as engine:
        result = await run_load(engine.endpoint, workload, plan_of(workload), on_window_open=open_window)
    assert set(result.errors) <= {None, "unfinished"}
    assert 1 <= result.errors.count("unfinished") <= 4
    assert np.isnan(result.last_token_s[~result.ok]).all()
    assert result.itl_s.size == 4 * result.ok.sum()
    assert result.window_s < 5


async def test_a_server_that_vanishes_ends_the_run_early_without_a_busy_loop(
    serve: Any, answers: Any, make_workload: Any
) -> None:
    workload = make_workload(window={"min_s": 20, "max_s": 60, "min_requests": 1})
    before = 0
    async with serve(answers.well_behaved(gap_s=0.002)) as engine:

        def vanish() -> None:
            nonlocal before
            before = len(engine.bodies)
            engine.answer = answers.hangs_up

        started = time.monotonic()
        result = await run_load(engine.endpoint, workload, plan_of(workload), on_window_open=vanish)
    assert time.monotonic() - started < 10
    # Those that were under way when the window opened still end well; each slot then waits ever longer.
    failed = [error for error in result.errors if error is not None]
    assert len(failed) >= FAILURES_IN_A_ROW - 4
    assert len(engine.bodies) - before < 2 * FAILURES_IN_A_ROW


async def test_a_server_that_never_serves_is_told_before_any_window(
    serve: Any, answers: Any, make_workload: Any
) -> None:
    workload = make_workload(arrivals={"kind": "closed_loop", "in_flight": 32})
    opened: list[bool] = []

    async with serve(answers.raw(b"down", status=503)) as engine:
        # One slot never ends its first request, so the ramp cannot end by completions.
        broken, first = engine.answer, iter([answers.never_answers])
        engine.answer = lambda request, body: next(first, broken)(request, body)
        with pytest.raises(LoadFailed, match="20 requests in a row failed before the window opened") as caught:
            await run_load(engine.endpoint, workload, plan_of(workload), on_window_open=lambda: opened.append(True))
    assert caught.value.evidence[0].endswith("HTTP 503: down")
    assert not opened


async def test_some_failures_are_counted_and_the_load_goes_on(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload(window={"min_s": 0.1, "max_s": 5, "min_requests": 40})
    good, bad = answers.well_behaved(gap_s=0.001), answers.raw(b"busy", status=503)
    turn = 0

    async def every_fifth(request: Any, body: Any) -> Any:
        nonlocal turn
        turn += 1
        return await (bad if turn % 5 == 0 else good)(request, body)

    async with serve(every_fifth) as engine:
        result = await run_load(engine.endpoint, workload, plan_of(workload))
    failed = sum(error == "HTTP 503: busy" for error in result.errors)
    assert failed == sum(error is not None for error in result.errors)
    assert 0.1 < failed / len(result.errors) < 0.3
    assert result.e2e_s.size == len(result.errors) - failed


async def test_cancelling_closes_every_connection_at_once(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload()
    async with serve(answers.never_answers) as engine:
        task = asyncio.create_task(run_load(engine.endpoint, workload, plan_of(workload)))
        await engine.until_under_way(4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.until_under_way(0)
