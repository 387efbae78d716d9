"""The capacity of one engine: a queue in place of the engine, asked once a second as a real load is."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from optimizer.core.measurement import UNFINISHED, EngineMetrics, FloatArray, HostUsage, LoadResult, Measurement
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.stop_reason import StopReason
from optimizer.load import ClosedLoop, Workload
from optimizer.load.arrival_process import GammaArrivals, PoissonArrivals
from optimizer.load.failure import ClientSpoiled
from optimizer.load.workload import PrefixSharing
from optimizer.objectives import OBJECTIVES, parse_slo, resolve_limits
from optimizer.objectives.capacity import LevelPlan
from optimizer.objectives.score import check_limit
from optimizer.objectives.shadow import Heard
from optimizer.objectives.shadow_engine import Traffic
from optimizer.objectives.shadow_verdict import Expectation
from optimizer.tuning.aim import Aim
from optimizer.tuning.capacity import CapacityFound, find_capacity
from optimizer.tuning.capacity_level import (
    MOST_TO_RELAX,
    LevelDecision,
    LevelRun,
    at_rate,
    judge_level,
    requests_per_allowed,
    requests_to_relax,
    saturating,
    settled,
)
from optimizer.tuning.capacity_shadow import EndlessTraffic, EngineShadow, tail_limits
from optimizer.tuning.capacity_verdict import LOOKS, AloneDecision, LookDecision, ShadowDecision


@pytest.fixture(autouse=True, scope="module")
def short_runs_of_the_model() -> Iterator[None]:
    """What it knows of the knee matters little here, and a long run takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("optimizer.tuning.capacity_shadow.LONG_REQUESTS", 40_000)
        patch.setattr("optimizer.tuning.capacity_shadow.SHORT_REQUESTS", 20_000)
        patch.setattr("optimizer.tuning.capacity_shadow._LENGTHS_DRAWN", 2_000)
        yield


CLOSED = {"kind": "closed_loop", "in_flight": 8}
POISSON = {"kind": "poisson", "rate_per_s": 20.0}
SERVERS, SERVICE_S = 32, 0.4
ANSWER_S = SERVICE_S * 3.0 / 4.5
"""From first to last of four tokens, where the first takes a step and half of one that is under way."""
LOOK_EVERY_S = 6.0


def workload(arrivals: dict[str, object]) -> Workload:
    return Workload.model_validate(
        {
            "name": "test",
            "arrivals": arrivals,
            "prompt_tokens": {"kind": "fixed", "tokens": 4},
            "output_tokens": {"kind": "fixed", "tokens": 4},
            "warmup": {"requests": 2, "max_s": 1.0},
            "window": {"min_s": 5, "max_s": 120, "min_requests": 100},
        }
    )


def aim(*slos: str, incumbent: float | None = None) -> Aim:
    limits = resolve_limits([parse_slo(text, origin="test") for text in slos], {})
    return Aim(OBJECTIVES["capacity"], limits, incumbent=incumbent)


class Queue:
    """`SERVERS` in parallel with one queue before them; service times hardly vary, so that it fills at 80 a second."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self.runs: list[LevelRun] = []
        self.answer_s = answer_s

    async def __call__(self, run: LevelRun) -> Measurement:
        self.runs.append(run)
        arrivals, window = run.workload.arrivals, run.workload.window
        rng = np.random.default_rng(run.number)
        if isinstance(arrivals, ClosedLoop):
            at_s = np.arange(400) * SERVICE_S / SERVERS
            return measured(at_s, at_s + SERVICE_S, 5.0, None, None, answer_s=self.answer_s)
        assert isinstance(arrivals, PoissonArrivals)
        scheduled_s = np.cumsum(rng.exponential(1.0 / arrivals.rate_per_s, int(window.max_s * arrivals.rate_per_s)))
        ended_s = served(scheduled_s, rng.normal(SERVICE_S, 0.02, scheduled_s.size))
        now_s, reason = 0.0, None
        while reason is None and now_s < window.max_s:
            now_s += LOOK_EVERY_S
            view = measured(scheduled_s, ended_s, now_s, now_s, None, answer_s=self.answer_s).load
            reason = run.stop_when(view) if run.stop_when is not None else None
            if window.max_requests is not None and int(view.ok.sum()) >= window.max_requests:
                reason = reason or StopReason.BUDGET
        return measured(scheduled_s, ended_s, now_s, now_s, reason or StopReason.BUDGET, answer_s=self.answer_s)


def served(scheduled_s: FloatArray, service_s: FloatArray) -> FloatArray:
    """When each request ends."""
    free_s = [0.0] * SERVERS
    ended_s = np.empty_like(scheduled_s)
    for number, at_s in enumerate(scheduled_s):
        ended_s[number] = max(heapq.heappop(free_s), float(at_s)) + service_s[number]
        heapq.heappush(free_s, float(ended_s[number]))
    return ended_s


def measured(
    scheduled_s: FloatArray,
    ended_s: FloatArray,
    until_s: float,
    now_s: float | None,
    reason: StopReason | None,
    *,
    answer_s: float = 0.0,
) -> Measurement:
    """A look at `now_s`; after a reason that drains, everything has ended. An answer takes `answer_s`."""
    n = int(np.searchsorted(scheduled_s, until_s))
    drained = now_s is None or (reason is not None and not reason.ends_at_once)
    done = np.ones(n, dtype=np.bool_) if drained else ended_s[:n] <= until_s
    load = LoadResult(
        window_start_s=0.0,
        window_s=until_s,
        scheduled_s=scheduled_s[:n],
        sent_s=scheduled_s[:n],
        first_token_s=np.where(done, ended_s[:n] - answer_s, np.nan),
        last_token_s=np.where(done, ended_s[:n], np.nan),
        prompt_tokens=np.full(n, 4),
        output_tokens=np.full(n, 4),
        errors=tuple(None if over else UNFINISHED for over in done),
        itl_s=np.zeros(3 * int(done.sum())),
        window_output_tokens=4 * n,
        window_requests=int(np.count_nonzero(ended_s[:n] <= until_s)),
        now_s=math.nan if now_s is None else now_s,
        stopped_by=reason,
    )
    return Measurement(load, EngineMetrics(), HostUsage())


def answers(
    decision: Callable[[LoadResult], StopReason | None], scheduled_s: FloatArray, ended_s: FloatArray, until: int
) -> list[StopReason | None]:
    """What is said in each second from the first on."""
    return [decision(measured(scheduled_s, ended_s, float(s), float(s), None).load) for s in range(1, until + 1)]


@pytest.fixture(scope="module")
def whole() -> tuple[Queue, CapacityFound]:
    """A queue after its whole search, and what that found."""
    queue = Queue()
    return queue, asyncio.run(find_capacity(aim("p95_e2e_ms=600"), workload(POISSON), queue, max_num_seqs=32))


def test_the_knee_of_a_queue_is_found_inside_one_life(whole: tuple[Queue, CapacityFound]) -> None:
    queue, found = whole
    result = found.result
    assert result.rate_per_s is not None
    assert 60.0 < result.rate_per_s < 82.0
    assert result.knee is not None
    assert result.knee.rate_per_s == pytest.approx(76.0, rel=0.07)
    assert result.served_per_s == pytest.approx(80.0, rel=0.1)
    assert [run.number for run in queue.runs] == list(range(len(queue.runs))), "other requests at every rate"
    assert queue.runs[0].workload.arrivals == ClosedLoop(kind="closed_loop", in_flight=64)
    kept = found.measurement.load
    assert kept.scheduled_s.size / kept.window_s == pytest.approx(result.rate_per_s, rel=0.1)
    assert found.kept.verdict is Verdict.FEASIBLE
    assert found.run.workload.arrivals == PoissonArrivals(kind="poisson", rate_per_s=result.rate_per_s)
    assert found.notes[0].startswith("capacity: highest feasible rate ")
    assert f"at {len(result.levels)} rates: " in found.notes[1]


def test_the_score_tells_the_verdict_of_all_rates_and_where_the_limits_end(whole: tuple[Queue, CapacityFound]) -> None:
    found = whole[1]
    told = found.told(Score("capacity_requests_per_s", found.rate_per_s, True, Verdict.UNDECIDED))
    assert told.verdict is Verdict.FEASIBLE
    assert told.low == found.rate_per_s == told.value
    assert told.high is None or told.high >= told.value


async def test_no_more_is_spent_on_a_setting_that_is_infeasible_at_the_best_rate_so_far() -> None:
    queue = Queue()
    found = await find_capacity(aim("p95_e2e_ms=600", incumbent=160.0), workload(POISSON), queue)
    assert found.result.dominated
    assert len(queue.runs) == 1
    assert found.rate_per_s < 160.0, "what was served of it"


async def test_a_setting_that_keeps_its_limits_at_the_best_rate_so_far_is_searched_from_there() -> None:
    queue = Queue()
    found = await find_capacity(aim("p95_e2e_ms=600", incumbent=60.0), workload(POISSON), queue)
    assert queue.runs[0].workload.arrivals == PoissonArrivals(kind="poisson", rate_per_s=60.0)
    assert not found.result.dominated
    assert found.rate_per_s > 60.0


async def test_where_nothing_is_feasible_the_setting_is_infeasible_and_the_rate_is_one_that_was_tried() -> None:
    found = await find_capacity(aim("p95_e2e_ms=100"), workload(POISSON), Queue())
    assert found.result.rate_per_s is None
    assert found.kept.verdict is Verdict.INFEASIBLE
    assert 0.0 < found.rate_per_s <= min(level.rate_per_s for level in found.result.levels)
    assert "highest feasible rate none" in found.notes[0]


def test_a_window_is_never_shorter_than_ten_times_the_p99_in_it() -> None:
    scheduled_s = np.arange(6000) / 400.0
    ended_s = scheduled_s + np.random.default_rng(0).uniform(0.9, 1.1, 6000)
    decision = LevelDecision(aim("p50_e2e_ms=5000"), LevelPlan(400.0, 0.05, False), 800.0)
    assert answers(decision, scheduled_s, ended_s, 14).index(StopReason.DECIDED) in (10, 11)


def test_a_probe_ends_without_a_verdict() -> None:
    scheduled_s = np.arange(3000) / 60.0
    ended_s = scheduled_s + np.random.default_rng(0).uniform(0.9, 1.1, 3000)
    decision = LevelDecision(aim("p99_e2e_ms=1500"), LevelPlan(60.0, 0.001, True), 80.0)
    assert answers(decision, scheduled_s, ended_s, 25).index(StopReason.WINDOW) in (10, 11)


def test_a_verdict_near_saturation_waits_until_the_queue_has_forgotten_that_it_began_empty() -> None:
    scheduled_s = np.arange(9000) / 100.0
    ended_s = scheduled_s + np.random.default_rng(0).uniform(0.09, 0.11, 9000)
    said = {}
    for served in (1000.0, 106.0):
        decision = LevelDecision(aim("p50_e2e_ms=5000"), LevelPlan(100.0, 0.05, False), served)
        said[served] = 1 + answers(decision, scheduled_s, ended_s, 12).index(StopReason.DECIDED)
    assert said[1000.0] < 10
    assert said[106.0] * 100 >= requests_to_relax(100.0, 106.0) > 600


@pytest.mark.parametrize(
    ("rate", "served", "requests"),
    [(50.0, 100.0, 8), (90.0, 100.0, 200), (100.0, 100.0, MOST_TO_RELAX), (9.0, None, 0)],
)
def test_the_nearer_saturation_the_longer_a_queue_remembers(rate: float, served: float | None, requests: int) -> None:
    assert requests_to_relax(rate, served) == pytest.approx(requests, abs=1)


def test_feasible_does_not_stand_on_a_window_that_is_too_short() -> None:
    at_s = np.arange(400) / 100.0
    load = measured(at_s, at_s + 0.1, 4.0, None, None).load
    level = judge_level(aim("p50_e2e_ms=400"), LevelPlan(100.0, 0.05, False), load)
    assert level.verdict is Verdict.FEASIBLE
    assert settled(level, load, None) == level
    assert settled(level, load, 1000.0) == level
    assert settled(level, load, 101.0).verdict is Verdict.UNDECIDED, "the queue has not shown yet what it becomes"
    assert settled(level, measured(at_s, at_s + 0.5, 4.0, None, None).load, None).verdict is Verdict.UNDECIDED


def test_an_early_decision_does_not_stand_against_a_queue_that_grows() -> None:
    scheduled_s = np.arange(6000) / 100.0
    growing_s = scheduled_s + 0.1 + 0.2 * scheduled_s
    plan = LevelPlan(100.0, 0.05, False)
    decision = LevelDecision(aim("p50_e2e_ms=400"), plan, None)
    assert StopReason.DECIDED not in answers(decision, scheduled_s, growing_s, 30)
    load = measured(scheduled_s, growing_s, 30.0, 30.0, StopReason.BUDGET).load
    assert judge_level(aim("p50_e2e_ms=400"), plan, load).verdict is not Verdict.FEASIBLE


def test_the_rate_changes_and_the_burstiness_stays() -> None:
    plan, limits = LevelPlan(7.5, 0.05, False), aim("p99_e2e_ms=400").limits
    assert at_rate(workload(CLOSED), plan, limits).arrivals == PoissonArrivals(kind="poisson", rate_per_s=7.5)
    bursty = workload({"kind": "gamma", "rate_per_s": 2.0, "burstiness": 0.5, "max_in_flight": 9})
    expected = GammaArrivals(kind="gamma", rate_per_s=7.5, burstiness=0.5, max_in_flight=9)
    assert at_rate(bursty, plan, limits).arrivals == expected
    assert saturating(bursty, limits, 64).arrivals == ClosedLoop(kind="closed_loop", in_flight=9)
    ramp = workload({"kind": "ramp", "from_rate_per_s": 1.0, "to_rate_per_s": 2.0, "over_s": 5.0})
    with pytest.raises(ValueError, match="ramp"):
        at_rate(ramp, plan, limits)


def test_the_users_largest_number_of_requests_holds_for_each_rate() -> None:
    limits = aim("p99_e2e_ms=400").limits
    own = workload(POISSON)
    capped = own.model_copy(update={"window": own.window.model_copy(update={"max_requests": 50})})
    assert at_rate(capped, LevelPlan(7.5, 0.05, False), limits).window.max_requests == 50
    assert at_rate(own, LevelPlan(7.5, 0.05, False), limits).window.max_requests == 12_000
    assert at_rate(own, LevelPlan(7.5, 0.05, True), limits).window.max_requests is None


@pytest.mark.parametrize(
    ("slos", "requests"), [(("p99_e2e_ms=5",), 100), (("p95_e2e_ms=5", "p50_ttft_ms=5"), 20), (("mean_ttft_ms=5",), 20)]
)
def test_the_rarest_latency_tells_how_many_requests_are_needed(slos: tuple[str, ...], requests: float) -> None:
    assert requests_per_allowed(aim(*slos).limits) == pytest.approx(requests)


def test_failures_alone_make_a_rate_infeasible_and_leave_it_no_headroom() -> None:
    at_s = np.arange(400) / 100.0
    load = measured(at_s, at_s + 0.1, 4.0, None, None).load
    failed = replace(load, errors=(None, None, None, "HTTP 503") * 100, itl_s=np.zeros(3 * 300))
    level = judge_level(aim("p50_e2e_ms=400"), LevelPlan(100.0, 0.05, False), failed)
    assert level.verdict is Verdict.INFEASIBLE
    assert level.headroom < 1.0


def test_a_mean_whose_interval_reaches_down_to_0_leaves_the_headroom_unsure() -> None:
    at_s = np.arange(8) / 10.0
    rare = measured(at_s, at_s + np.where(np.arange(8) == 5, 9.0, 0.01), 10.0, None, None).load
    meant = aim("mean_e2e_ms=3000")
    (constraint,) = [check_limit(limit, rare, meant.rules) for limit in meant.limits]
    assert constraint.low == 0.0
    level = judge_level(meant, LevelPlan(10.0, 0.05, False), rare)
    assert math.isinf(level.error)
    assert level.headroom == pytest.approx(3000.0 / constraint.observed)


async def test_a_limit_that_the_model_does_not_know_is_searched_without_it() -> None:
    queue = Queue()
    found = await find_capacity(aim("mean_e2e_ms=600"), workload(POISSON), queue, max_num_seqs=32)
    assert not any(isinstance(run.stop_when, ShadowDecision) for run in queue.runs)
    assert found.rate_per_s > 60.0


async def test_an_engine_that_is_unlike_the_model_is_searched_without_it() -> None:
    """Its slots are taken for less long than four steps of the length that the tokens tell."""
    queue = Queue(answer_s=0.36)
    found = await find_capacity(aim("p95_e2e_ms=600"), workload(POISSON), queue, max_num_seqs=32)
    assert isinstance(queue.runs[-1].stop_when, AloneDecision)
    assert found.rate_per_s > 66.0


def test_a_percentile_is_judged_beside_the_model(whole: tuple[Queue, CapacityFound]) -> None:
    kinds = [type(run.stop_when) for run in whole[0].runs]
    assert kinds[:3] == [type(None), LookDecision, LookDecision]
    assert kinds[-1] is ShadowDecision


class Spoiled(Queue):
    """The client cannot keep up in some of the runs."""

    def __init__(self, numbers: set[int]) -> None:
        super().__init__()
        self.numbers = numbers

    async def __call__(self, run: LevelRun) -> Measurement:
        if run.number in self.numbers:
            raise ClientSpoiled("P99 of the event loop's lag is 40 ms")
        return await super().__call__(run)


async def test_one_spoiled_run_is_made_again_with_other_requests() -> None:
    queue = Spoiled({0, 2})
    found = await find_capacity(aim("p95_e2e_ms=600"), workload(POISSON), queue, max_num_seqs=32)
    assert [run.number for run in queue.runs][:3] == [1, 3, 4]
    assert found.kept.verdict is Verdict.FEASIBLE


async def test_a_rate_that_is_spoiled_twice_spoils_the_attempt() -> None:
    with pytest.raises(ClientSpoiled):
        await find_capacity(aim("p95_e2e_ms=600"), workload(POISSON), Spoiled({2, 3}), max_num_seqs=32)


def test_constraints_of_a_feasible_rate_are_feasible_whatever_their_own_requests_leave_open(
    whole: tuple[Queue, CapacityFound],
) -> None:
    open_still = Constraint("p95_e2e_ms", 600.0, 610.0, None, None, 0.02, Verdict.UNDECIDED)
    score = Score("capacity_requests_per_s", 70.0, True, Verdict.UNDECIDED, (open_still,))
    told = whole[1].told(score).constraints[0]
    assert told.verdict is Verdict.FEASIBLE
    assert told.violation == 0.0


def always(verdict: Verdict) -> Expectation:
    """An expectation that says the same of any requests."""

    class Always(Expectation):
        def verdict(self, heard: Heard, level: float) -> Verdict:
            return verdict

    return Always(())


def shadow_decision(verdict: Verdict, slo: str) -> ShadowDecision:
    at_s = np.arange(400) / 60.0
    saturated = measured(at_s, at_s + 0.2, 5.0, None, None).load
    shadow = EngineShadow.of(aim(slo).limits, workload(POISSON), saturated, 64, 32)
    assert shadow is not None
    return ShadowDecision(aim(slo), LevelPlan(60.0, 0.05, False), 80.0, shadow, always(verdict), 1)


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (Verdict.FEASIBLE, StopReason.DECIDED),
        (Verdict.INFEASIBLE, StopReason.HOPELESS),
        (Verdict.UNDECIDED, StopReason.BUDGET),
    ],
)
def test_the_verdict_beside_a_model_is_looked_for_at_set_numbers_of_requests(
    verdict: Verdict, reason: StopReason
) -> None:
    scheduled_s = np.arange(6000) / 60.0
    ended_s = scheduled_s + np.random.default_rng(0).uniform(0.3, 0.5, 6000)
    decision = shadow_decision(verdict, "p90_e2e_ms=600")
    said = answers(decision, scheduled_s, ended_s, 60)
    first = next(second for second, why in enumerate(said) if why is not None)
    assert said[first] is reason
    share = LOOKS[-1][0] if verdict is Verdict.UNDECIDED else LOOKS[0][0]
    assert (first + 1) * 60 == pytest.approx(share * 1500, abs=120)
    load = measured(scheduled_s, ended_s, first + 1.0, first + 1.0, reason).load
    assert decision.level(load).verdict is verdict


def test_feasible_does_not_stand_where_the_run_itself_is_beyond_the_tolerance() -> None:
    scheduled_s = np.arange(3000) / 60.0
    decision = shadow_decision(Verdict.FEASIBLE, "p90_e2e_ms=400")
    load = measured(scheduled_s, scheduled_s + 0.43, 40.0, None, None).load
    assert decision.level(load).verdict is Verdict.UNDECIDED
    assert decision.level(replace(load, stopped_by=StopReason.SATURATED)).verdict is Verdict.INFEASIBLE


def test_a_window_that_the_user_cut_short_is_judged_as_it_is() -> None:
    scheduled_s = np.arange(700) / 60.0
    decision = shadow_decision(Verdict.FEASIBLE, "p90_e2e_ms=600")
    load = measured(scheduled_s, scheduled_s + 0.3, 8.0, None, None).load
    assert decision.level(load).verdict is Verdict.FEASIBLE
    short = measured(scheduled_s, scheduled_s + 0.3, 2.0, None, None).load
    assert shadow_decision(Verdict.FEASIBLE, "p90_e2e_ms=600").level(short).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("slo", ["mean_e2e_ms=400", "p99_itl_ms=40"])
def test_the_model_knows_neither_means_nor_gaps(slo: str) -> None:
    assert tail_limits(aim(slo).limits) is None
    assert tail_limits(aim("p99_e2e_ms=400", slo).limits) is None


def test_lengths_of_the_models_own_traffic_are_those_of_the_workload() -> None:
    seen = Traffic(np.zeros(2), np.array([700, 800]), np.array([9, 9]))
    drawn = workload(POISSON).model_copy(update={"shared_prefix": PrefixSharing(prefixes=2, tokens=10)})
    alone = EndlessTraffic(drawn, seen)
    sent = alone(20.0, 5000)
    assert set(sent.prompt_tokens) == {14}
    assert sent.due_s[-1] == pytest.approx(5000 / 20.0)
    assert alone(40.0, 5000).due_s == pytest.approx(sent.due_s / 2.0)
    assert not np.array_equal(alone.after(20.0, 1).due_s, alone.after(20.0, 2).due_s)
    text = drawn.model_copy(update={"content": "text"})
    assert set(EndlessTraffic(text, seen)(20.0, 100).prompt_tokens) <= {700, 800}
