"""Several load processes: the same requests as from one, and no hang when one of them goes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from typing import Any

import numpy as np
import psutil
import pytest

from optimizer.core.measurement import LoadResult
from optimizer.load import LoadFailed, RequestPlan, Workload
from optimizer.load.completion import RequestTrace
from optimizer.load.driver import run_load
from optimizer.load.failure import ClientSpoiled
from optimizer.load.reports import ReportReader, ReportWriter
from optimizer.load.self_watch import SelfWatch
from optimizer.load.sender import Share
from optimizer.load.worker import order_line

WARM_UP = {"requests": 1, "max_s": 0.5}


def plan_of(workload: Workload) -> RequestPlan:
    return RequestPlan(workload, 1, 2, 512)


def workers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "optimizer.load.worker" in p.cmdline()]


def prompts(bodies: list[dict[str, Any]]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(body["prompt"]) for body in bodies)


async def test_two_processes_send_what_one_sends_and_merge_to_the_same_result(
    serve: Any, answers: Any, make_workload: Any
) -> None:
    workload = make_workload(
        arrivals={"kind": "poisson", "rate_per_s": 60},
        prompt_tokens={"kind": "uniform", "low": 1, "high": 3000},
        warmup=WARM_UP,
        window={"min_s": 2.0, "max_s": 20, "min_requests": 1},
    )
    results: list[LoadResult] = []
    sent = []
    traces: list[RequestTrace] = []
    for processes in (1, 2):
        traces = []
        async with serve(answers.well_behaved(gap_s=0.005)) as engine:
            results.append(
                await run_load(engine.endpoint, workload, plan_of(workload), processes=processes, traces=traces)
            )
            sent.append(prompts(engine.bodies))
            assert engine.authorizations.count("Bearer invented") == len(engine.bodies)
    one, two = results
    n = min(len(one.errors), len(two.errors)) - 1
    assert n > 40
    assert one.ok.all()
    assert two.ok.all()
    np.testing.assert_allclose(
        (two.scheduled_s - two.window_start_s)[:n], (one.scheduled_s - one.window_start_s)[:n], atol=1e-6
    )
    assert two.prompt_tokens[:n].tolist() == one.prompt_tokens[:n].tolist()
    counted = sorted((t.scheduled_s, t.number) for t in traces if t.scheduled_s >= two.window_start_s)
    assert [number for _, number in counted[:n]] == [*range(n)]
    assert two.itl_s.size == 4 * len(two.errors)
    for result in results:
        # Those that came within the window, and five for each request that was due in it: neither the half nor twice.
        assert 0.6 < result.window_output_tokens / (5 * len(result.errors)) < 1.6
    assert two.client is not None
    assert two.client.processes == 2
    assert 0 < two.client.busiest_cores < two.client.cpu_cores
    assert not workers()


async def test_slots_and_the_cap_are_shared_out(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload(
        arrivals={"kind": "closed_loop", "in_flight": 3},
        warmup=WARM_UP,
        window={"min_s": 0.3, "max_s": 3, "min_requests": 10},
    )
    async with serve(answers.well_behaved(gap_s=0.002)) as engine:
        result = await run_load(engine.endpoint, workload, plan_of(workload), processes=2)
    assert engine.most_under_way == 3
    assert result.ok.all()
    assert len(result.errors) >= 10


async def test_a_worker_that_dies_spoils_the_run_and_leaves_no_other(
    serve: Any, answers: Any, make_workload: Any
) -> None:
    workload = make_workload(window={"min_s": 90, "max_s": 90, "min_requests": 1}, warmup=WARM_UP)

    def kill_one() -> None:
        os.kill(workers()[0].pid, signal.SIGKILL)

    async with serve(answers.well_behaved(gap_s=0.01)) as engine, asyncio.timeout(60):
        with pytest.raises(ClientSpoiled, match=r"load process \d ended by itself \(exit status -9\)"):
            await run_load(engine.endpoint, workload, plan_of(workload), processes=2, on_window_open=kill_one)
        assert not workers()
        await engine.until_under_way(0)


async def test_trouble_of_the_server_is_told_as_by_one_process(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload(warmup={"requests": 1, "max_s": 10}, arrivals={"kind": "closed_loop", "in_flight": 32})
    async with serve(answers.raw(b"down", status=503)) as engine, asyncio.timeout(60):
        with pytest.raises(LoadFailed, match="in a row failed") as caught:
            await run_load(engine.endpoint, workload, plan_of(workload), processes=2)
    assert caught.value.evidence[0].endswith("HTTP 503: down")


async def test_cancelling_ends_the_workers(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload()
    async with serve(answers.never_answers) as engine:
        task = asyncio.create_task(run_load(engine.endpoint, workload, plan_of(workload), processes=2))
        await engine.until_under_way(4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not workers()
        await engine.until_under_way(0)


async def test_the_key_is_in_no_command_line_or_environment(serve: Any, answers: Any, make_workload: Any) -> None:
    workload = make_workload(warmup=WARM_UP)
    seen: list[str] = []

    def look() -> None:
        seen.extend(" ".join(p.cmdline()) + str(p.environ()) for p in workers())

    async with serve(answers.well_behaved(gap_s=0.001)) as engine:
        await run_load(engine.endpoint, workload, plan_of(workload), processes=2, on_window_open=look)
    assert len(seen) == 2
    assert not any("invented" in text for text in seen)


async def test_a_worker_ends_when_its_orders_do(serve: Any, answers: Any, make_workload: Any) -> None:
    """As they do when the parent is killed: the kernel closes the pipe."""
    workload = make_workload(arrivals={"kind": "closed_loop", "in_flight": 3})
    pipe = asyncio.subprocess.PIPE
    async with serve(answers.never_answers) as engine:
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "optimizer.load.worker", stdin=pipe, stdout=pipe
        )
        assert worker.stdin is not None
        worker.stdin.write(order_line(engine.endpoint, workload, plan_of(workload), Share()))
        worker.stdin.write(b'{"start_at_s":0}\n')
        await engine.until_under_way(3)
        worker.stdin.close()
        async with asyncio.timeout(60):
            await worker.communicate()
        assert worker.returncode == 0
        await engine.until_under_way(0)


def test_reports_put_together_give_the_traces_again() -> None:
    source, watch = [RequestTrace(1.0, 3, 9, number=4, session=2, turn=1)], SelfWatch()
    copy: list[RequestTrace] = []
    ended: list[RequestTrace] = []
    writer, reader = ReportWriter(source, watch), ReportReader(copy, ended.append)

    def report(now_s: float) -> int:
        line = json.loads(writer.report(now_s, exhausted=False, last=False))
        reader.read(line)
        return len(line["requests"])

    assert report(1.1) == 1
    assert report(1.2) == 0, "nothing is new"
    source[0].sent_s = source[0].ready_s = 1.25
    source[0].arrivals.append((1.3, 2))
    source.append(RequestTrace(1.3, 4, 9, number=5))
    watch.at_s.append(1.3)
    watch.lag_s.append(0.001)
    watch.cpu_s.append(0.5)
    assert report(1.4) == 2
    source[0].arrivals.append((1.5, 3))
    source[0].ended_s, source[0].error, source[0].http_status = 1.5, None, 200
    assert report(1.6) == 1
    assert [[*trace.arrivals] for trace in copy] == [[(1.3, 2), (1.5, 3)], []]
    for mine, its in zip(copy, source, strict=True):
        for name in (
            "scheduled_s",
            "sent_s",
            "ready_s",
            "ended_s",
            "error",
            "http_status",
            "number",
            "session",
            "turn",
        ):
            assert getattr(mine, name) == getattr(its, name)
    assert ended == [copy[0]]
    assert (reader.known_until_s, [*reader.watch.lag_s]) == (1.6, [0.001])
