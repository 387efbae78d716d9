"""Open loops against a real server: schedules that answers do not move, the cap, conversations, and when a run ends."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import numpy as np
import pytest

from optimizer.core.measurement import LoadResult
from optimizer.core.stop_reason import StopReason
from optimizer.load import LoadFailed, RequestPlan, Workload
from optimizer.load.arrivals import window_offsets_s
from optimizer.load.driver import run_load

WARM_UP = {"requests": 1, "max_s": 0.5}
POISSON = {"kind": "poisson", "rate_per_s": 100}


def plan_of(workload: Workload, **more: Any) -> RequestPlan:
    return RequestPlan(workload, 1, 2, 512, **more)


def window(min_s: float, requests: int = 1, max_s: float = 5.0, **more: Any) -> dict[str, Any]:
    return {"min_s": min_s, "max_s": max_s, "min_requests": requests, **more}


async def test_requests_leave_when_they_are_due_though_no_answer_comes(
    serve: Any, answers: Any, make_workload: Any
) -> None:
    """No coordinated omission: a server that stalls for the whole window gets the same requests at the same times."""
    workload = make_workload(arrivals=POISSON | {"rate_per_s": 40}, warmup=WARM_UP, window=window(0.5))
    planned = [*islice(window_offsets_s(workload.arrivals, 1, None), 1000)]
    good, stalled = answers.well_behaved(gap_s=0.001), asyncio.Event()

    async def stalls(request: Any, body: Any) -> Any:
        if stalled.is_set():
            await asyncio.sleep(0.4)
        return await good(request, body)

    async with serve(stalls) as engine:
        result = await run_load(engine.endpoint, workload, plan_of(workload), on_window_open=stalled.set)
    n = len(result.errors)
    assert result.scheduled_s - result.window_start_s == pytest.approx(planned[:n], abs=1e-6)
    assert planned[n] >= result.window_s - 0.01
    assert result.ok.all(), "the load went on until the last of them had ended"
    assert np.median(result.e2e_s) > 0.4
    assert result.client is not None
    assert result.client.processes == 1
    assert np.median(result.queue_s) < 0.1, "none waits for an answer, which takes 0.4 s"


async def test_the_wait_at_the_cap_is_latency_and_is_shown_apart(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload(
        arrivals={"kind": "constant", "rate_per_s": 100, "max_in_flight": 2},
        warmup={"requests": 1, "max_s": 0.2},
        window=window(0.3, max_s=5),
    )
    async with serve(answers.well_behaved(gap_s=0.01)) as engine:
        result = await run_load(engine.endpoint, workload, plan_of(workload))
    assert engine.most_under_way == 2
    assert result.ok.all()
    # 2 at a time of 50 ms each serve 40 a second, and 100 come: the later, the longer the wait.
    assert result.queue_s[-1] > 0.2
    assert (result.ttft_s >= result.queue_s[result.ok]).all()
    assert np.nanmedian(result.sent_s - result.ready_s) < 0.05, "waiting for a slot is not the client's fault"
    assert result.stopped_by is StopReason.WINDOW


@pytest.mark.parametrize(
    "arrivals", [{"kind": "constant", "rate_per_s": 60}, {"kind": "gamma", "rate_per_s": 60, "burstiness": 0.5}]
)
async def test_every_run_has_the_same_requests_at_the_same_times(
    serve: Any, answers: Any, make_workload: Any, arrivals: dict[str, Any]
) -> None:
    workload = make_workload(
        arrivals=arrivals,
        warmup=WARM_UP,
        window=window(0.3),
        prompt_tokens={"kind": "uniform", "low": 1, "high": 5000},
    )
    seen = []
    for gap_s in (0.0, 0.02):
        async with serve(answers.well_behaved(gap_s=gap_s)) as engine:
            result = await run_load(engine.endpoint, workload, plan_of(workload))
        seen.append((result.scheduled_s[:10] - result.window_start_s, result.prompt_tokens[:10].tolist()))
    assert seen[0][0] == pytest.approx(seen[1][0], abs=1e-6)
    assert seen[0][1] == seen[1][1]


async def test_the_window_closes_at_its_largest_number_of_requests(
    serve: Any, answers: Any, make_workload: Any
) -> None:
    workload = make_workload(arrivals=POISSON, warmup=WARM_UP, window=window(5, 20, 10, max_requests=20))
    async with serve(answers.well_behaved()) as engine:
        result = await run_load(engine.endpoint, workload, plan_of(workload))
    assert 20 <= len(result.errors) < 300, "5 s would have 500"
    assert result.stopped_by is StopReason.BUDGET
    assert result.window_s < 4


async def test_the_verdict_is_asked_for_and_closes_the_window_only_after_its_minima(
    serve: Any, answers: Any, make_workload: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("optimizer.load.driver.LOOK_EVERY_S", 0.05)
    workload = make_workload(arrivals=POISSON, warmup=WARM_UP, window=window(0.3))
    looks: list[LoadResult] = []

    def decided(load: LoadResult) -> StopReason:
        looks.append(load)
        return StopReason.DECIDED

    async with serve(answers.well_behaved(gap_s=0.02)) as engine:
        result = await run_load(engine.endpoint, workload, plan_of(workload), stop_when=decided)
    assert result.stopped_by is StopReason.DECIDED
    assert 0.3 <= result.window_s < 4
    assert result.ok.all()
    assert len(looks) >= 2
    assert any(load.under_way.any() for load in looks)
    assert all(load.window_start_s + load.window_s == load.now_s for load in looks)
    assert np.diff([len(load.errors) for load in looks]).min() >= 0


async def test_without_a_decision_the_budget_closes_it(
    serve: Any, answers: Any, make_workload: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("optimizer.load.driver.LOOK_EVERY_S", 0.05)
    workload = make_workload(warmup=WARM_UP, window=window(0.1, max_s=0.4))
    async with serve(answers.well_behaved(gap_s=0.01)) as engine:
        result = await run_load(engine.endpoint, workload, plan_of(workload), stop_when=lambda load: None)
    assert result.stopped_by is StopReason.BUDGET
    assert result.window_s >= 0.4


@pytest.mark.parametrize("reason", [StopReason.HOPELESS, StopReason.DOMINATED])
async def test_a_hopeless_run_ends_at_once(
    serve: Any, answers: Any, make_workload: Any, monkeypatch: Any, reason: StopReason
) -> None:
    monkeypatch.setattr("optimizer.load.driver.LOOK_EVERY_S", 0.1)
    workload = make_workload(arrivals=POISSON, warmup=WARM_UP, window=window(20, max_s=60))
    good, stalled = answers.well_behaved(gap_s=0.001), asyncio.Event()

    async def stalls(request: Any, body: Any) -> Any:
        return await (answers.never_answers if stalled.is_set() else good)(request, body)

    async with serve(stalls) as engine, asyncio.timeout(15):
        result = await run_load(
            engine.endpoint,
            workload,
            plan_of(workload),
            stop_when=lambda load: reason,
            on_window_open=stalled.set,
        )
    assert result.stopped_by is reason
    assert "unfinished" in result.errors


@pytest.mark.parametrize("cap", [None, 8])
async def test_a_load_beyond_what_is_served_is_seen_and_ends_the_run(
    serve: Any, answers: Any, make_workload: Any, monkeypatch: Any, cap: int | None
) -> None:
    """The queue is the engine's, or with a cap on requests in flight the client's."""
    monkeypatch.setattr("optimizer.load.saturation.SHORTEST_S", 3)
    arrivals = POISSON | {"rate_per_s": 150, "max_in_flight": cap}
    workload = make_workload(arrivals=arrivals, warmup=WARM_UP, window=window(60, max_s=90))
    one_at_a_time = asyncio.Lock()
    good = answers.well_behaved()

    async def slow(request: Any, body: Any) -> Any:
        async with one_at_a_time:
            await asyncio.sleep(0.015)
        return await good(request, body)

    async with serve(slow) as engine:
        result = await run_load(engine.endpoint, workload, plan_of(workload))
    assert result.stopped_by is StopReason.SATURATED
    assert result.window_s < 50
    assert result.in_flight_per_s[-1] > result.in_flight_per_s[0]


async def test_conversations_send_their_turns_a_think_time_after_each_answer(
    serve: Any, answers: Any, make_workload: Any
) -> None:
    workload = make_workload(
        arrivals={"kind": "constant", "rate_per_s": 30},
        sessions={"turns": "3", "think_time": {"kind": "fixed", "seconds": 0.05}},
        warmup=WARM_UP,
        window=window(1.0),
    )
    async with serve(answers.well_behaved(gap_s=0.001)) as engine:
        result = await run_load(engine.endpoint, workload, plan_of(workload))
    assert result.ok.all()
    assert set(result.turns) == {0, 1, 2}
    # A later turn repeats the earlier ones.
    first = np.flatnonzero(result.sessions == 2)
    assert result.turns[first].tolist() == [0, 1, 2]
    assert np.diff(result.prompt_tokens[first]).min() > 5
    gaps_s = result.scheduled_s[first[1:]] - result.last_token_s[first[:-1]]
    assert (gaps_s >= 0.05 - 1e-6).all()
    assert np.median(gaps_s) < 0.3, "a machine that is busy elsewhere delays some"
    assert result.sessions.min() < -1, "those of the ramp go on, under numbers of their own"


async def test_requests_longer_than_the_engine_takes_are_counted_and_never_sent(
    serve: Any, answers: Any, make_workload: Any
) -> None:
    workload = make_workload(
        arrivals=POISSON,
        prompt_tokens="0.7:8,0.3:100",
        warmup=WARM_UP,
        window=window(0.3, 20),
    )
    async with serve(answers.well_behaved()) as engine:
        result = await run_load(engine.endpoint, workload, plan_of(workload, max_model_len=50))
    assert 0 < result.too_long < len(result.errors)
    assert result.too_long == (~result.ok).sum()
    assert all(len(body["prompt"]) == 8 for body in engine.bodies)


async def test_a_server_that_refuses_everything_is_told_before_any_window(
    serve: Any, answers: Any, make_workload: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("optimizer.load.driver.FAILING_FOR_S", 0.3)
    workload = make_workload(arrivals=POISSON, warmup={"requests": 1, "max_s": 30})
    async with serve(answers.raw(b"down", status=503)) as engine:
        with pytest.raises(LoadFailed, match="in a row failed") as caught:
            await run_load(engine.endpoint, workload, plan_of(workload))
    assert caught.value.evidence[0].endswith("HTTP 503: down")


async def test_compiling_holds_the_window_shut_but_not_for_ever(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload(warmup={"requests": 1, "max_s": 0.4}, window=window(0.1))
    patient = make_workload(warmup={"requests": 1, "max_s": 4}, window=window(0.1))
    calm = iter([True, True, True, True, True])
    async with serve(answers.well_behaved(gap_s=0.001)) as engine:
        plan = plan_of(workload)
        soon = await run_load(engine.endpoint, patient, plan)
        later = await run_load(engine.endpoint, workload, plan, warm_up_extended=lambda: next(calm, False))
        never = await run_load(engine.endpoint, workload, plan, warm_up_extended=lambda: True)
    assert soon.level
    assert later.warm_up_s > 0.2
    assert 0.75 <= never.warm_up_s < 5
    assert not never.level
