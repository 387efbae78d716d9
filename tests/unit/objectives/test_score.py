"""Scores: verdicts, failed requests as infinitely slow ones, and numbers that any record can hold."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.errors import InputError
from optimizer.core.measurement import UNFINISHED, Measurement
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.stop_reason import StopReason
from optimizer.metrics import summarize
from optimizer.objectives import OBJECTIVES, VerdictRules, parse_slo, resolve_limits, score
from optimizer.objectives.score import UNBOUNDED_VIOLATION, fewest_values, percentile_with_failures
from tests.unit.objectives.made import measured

THROUGHPUT = OBJECTIVES["throughput"]
RULES = VerdictRules()


def judge(
    measurement: Measurement,
    *slos: str,
    baseline: dict[str, float | None] | None = None,
    own: bool = False,
    rules: VerdictRules = RULES,
) -> Score:
    parsed = [parse_slo(text, origin="test") for text in slos]
    limits = resolve_limits(parsed, baseline or {}, of_baseline=own)
    return score(THROUGHPUT, limits, measurement, summarize(measurement), rules)


def first(measurement: Measurement, slo: str, rules: VerdictRules = RULES) -> Constraint:
    return judge(measurement, slo, rules=rules).constraints[0]


def spread(n: int, p99_ms: float, *, seed: int = 1) -> list[float | None]:
    """Independent requests whose true P99 is known."""
    sigma = 0.3
    raw = np.random.default_rng(seed).lognormal(0.0, sigma, n)
    return (raw / math.exp(2.3263 * sigma) * p99_ms).tolist()


def test_an_early_verdict_does_not_stand_against_the_whole_run() -> None:
    """A queue that grows is short at first: the early requests decide FEASIBLE, and the P99 ends far over the limit."""
    growing = measured([*spread(4000, 300.0), *spread(1000, 3000.0, seed=2)])
    open_yet = first(growing, "p99_e2e_ms=800")
    assert open_yet.observed is not None
    assert open_yet.observed > 1600.0
    assert open_yet.verdict is Verdict.UNDECIDED
    assert open_yet.violation is not None
    saturated = measured([*spread(4000, 300.0), *spread(1000, 3000.0, seed=2)], stopped_by=StopReason.SATURATED)
    assert first(saturated, "p99_e2e_ms=800").verdict is Verdict.INFEASIBLE


def test_enough_requests_far_from_the_limit_decide() -> None:
    held = first(measured(spread(4000, 600.0)), "p99_e2e_ms=800")
    broken = first(measured(spread(600, 1200.0)), "p99_e2e_ms=800")
    assert (held.verdict, broken.verdict) == (Verdict.FEASIBLE, Verdict.INFEASIBLE)
    assert held.observed == pytest.approx(600.0, rel=0.1)
    assert held.violation == pytest.approx(math.log((held.observed or 0.0) / 800.0))
    assert (held.n, broken.n) == (4000, 600)
    assert held.n_effective is not None
    assert 1000 < held.n_effective <= 4000


def test_few_requests_leave_a_percentile_undecided_however_fast_they_are() -> None:
    few = first(measured([10.0] * 200), "p99_e2e_ms=800")
    assert few.verdict is Verdict.UNDECIDED
    assert few.high is None, "200 requests do not bound a P99 from above"
    assert few.confidence == 0.9


def test_level_and_tolerance_are_the_users() -> None:
    run = measured(spread(1500, 600.0))
    assert first(run, "p99_e2e_ms=800", VerdictRules(level=0.01, tolerance=0.0)).verdict is Verdict.UNDECIDED
    loose = first(run, "p99_e2e_ms=800", VerdictRules(level=0.2, tolerance=0.2))
    assert loose.verdict is Verdict.FEASIBLE
    assert loose.confidence == 0.6


def test_within_the_tolerance_the_violation_follows_the_verdict() -> None:
    constraint = first(measured(spread(6000, 780.0)), "p99_e2e_ms=800", VerdictRules(tolerance=0.15))
    assert constraint.verdict is Verdict.INFEASIBLE
    assert constraint.observed is not None
    assert constraint.observed < 800.0
    assert constraint.violation is not None
    assert constraint.violation > 0.0


def test_a_median_is_decided_by_few_requests() -> None:
    values: list[float | None] = (np.random.default_rng(0).uniform(8.0, 14.0, 300)).tolist()
    assert first(measured(values), "p50_e2e_ms=20").verdict is Verdict.FEASIBLE
    assert first(measured(values), "p50_e2e_ms=8").verdict is Verdict.INFEASIBLE


@pytest.mark.parametrize(("percent", "fewest"), [(50.0, 2), (90.0, 10), (99.0, 100), (99.9, 1000), (1.0, 2)])
def test_of_fewer_requests_a_percentile_is_the_largest_value(percent: float, fewest: int) -> None:
    assert fewest_values(percent) == fewest


def test_value_and_order_of_constraints() -> None:
    run = measured(spread(800, 15.0), tokens_per_s_bins=np.array([9, 11, 10, 8, 12, 10, 9, 11, 10, 10]))
    result = judge(run, "p95_ttft_ms=5", "p50_e2e_ms=12")
    assert (result.metric, result.value, result.maximise) == ("output_tokens_per_s", 10.0, True)
    assert [c.name for c in result.constraints] == ["p95_ttft_ms", "p50_e2e_ms", "error_rate"]
    assert result.verdict is Verdict.FEASIBLE, result.constraints
    assert result.confidence == 0.9
    assert result.low is not None
    assert result.high is not None
    assert 8.0 < result.low < 10.0 < result.high < 12.0


def test_without_limits_only_the_error_rate_counts() -> None:
    assert judge(measured([10.0] * 3)).verdict is Verdict.FEASIBLE
    assert judge(measured([10.0] * 3 + [None])).verdict is Verdict.UNDECIDED
    assert judge(measured(([10.0] * 3 + [None]) * 100)).verdict is Verdict.INFEASIBLE


def test_overall_verdict_is_the_worst() -> None:
    values: list[float | None] = np.random.default_rng(0).uniform(8.0, 14.0, 300).tolist()
    run = measured(values)
    assert judge(run, "p50_e2e_ms=20").verdict is Verdict.FEASIBLE
    assert judge(run, "p50_e2e_ms=20", "p99_e2e_ms=20").verdict is Verdict.UNDECIDED
    assert judge(run, "p50_e2e_ms=5", "p99_e2e_ms=20").verdict is Verdict.INFEASIBLE


def test_a_failed_request_is_over_any_limit() -> None:
    run = measured(([10.0] * 19 + [None]) * 40)
    assert first(run, "p50_e2e_ms=20").verdict is Verdict.FEASIBLE
    constraint = first(run, "p99_e2e_ms=20")
    assert constraint.verdict is Verdict.INFEASIBLE
    assert constraint.observed is None
    assert constraint.violation == UNBOUNDED_VIOLATION
    assert first(run, "mean_ttft_ms=20").verdict is Verdict.INFEASIBLE


def test_dropping_requests_is_no_better_than_serving_them_late() -> None:
    late = first(measured(([10.0] * 19 + [9000.0]) * 40), "p99_e2e_ms=20")
    dropped = first(measured((([10.0] * 19 + [9000.0]) + ([10.0] * 19 + [None])) * 20), "p99_e2e_ms=20")
    assert late.violation is not None
    assert dropped.violation is not None
    assert late.verdict is dropped.verdict is Verdict.INFEASIBLE
    assert dropped.violation >= late.violation > UNBOUNDED_VIOLATION


def test_one_percent_of_failures_is_allowed_and_the_user_may_allow_more() -> None:
    at: list[float | None] = [1.0] * 198 + [None] * 2
    few: list[float | None] = [1.0] * 49 + [None] + [1.0] * 146 + [None] * 2
    many: list[float | None] = ([1.0] * 9 + [None]) * 100
    assert judge(measured(at)).verdict is Verdict.FEASIBLE
    assert judge(measured(few)).verdict is Verdict.UNDECIDED, "3 of 198 may be chance"
    assert judge(measured(many)).verdict is Verdict.INFEASIBLE
    assert judge(measured(many), rules=VerdictRules(error_rate=0.2)).verdict is Verdict.FEASIBLE
    constraint = judge(measured(many)).constraints[-1]
    assert (constraint.name, constraint.limit, constraint.observed) == ("error_rate", 0.01, 0.1)
    assert constraint.violation == pytest.approx(math.log(10.0))
    assert constraint.low is not None
    assert constraint.high is not None
    assert constraint.low < 0.1 < constraint.high


def test_not_one_failure_may_be_allowed() -> None:
    """A bound of 0 has no logarithm, and what lies above it is as violated as a failed request."""
    strict = VerdictRules(error_rate=0.0)
    kept = judge(measured([100.0] * 400), rules=strict).constraints[0]
    assert (kept.verdict, kept.violation) == (Verdict.FEASIBLE, 0.0)
    broken = judge(measured([100.0] * 400 + [None]), rules=strict).constraints[0]
    assert (broken.verdict, broken.violation) == (Verdict.INFEASIBLE, UNBOUNDED_VIOLATION)


def test_requests_given_up_with_the_run_have_not_failed() -> None:
    run = measured([10.0] * 300 + [None] * 40, now_s=3.5, stopped_by=StopReason.HOPELESS)
    given_up = replace(run.load, errors=(None,) * 300 + (UNFINISHED,) * 40)
    drained = replace(given_up, stopped_by=StopReason.DECIDED)
    assert judge(replace(run, load=given_up)).constraints[-1].observed == 0.0
    assert judge(replace(run, load=drained)).constraints[-1].observed == pytest.approx(40 / 340)


def test_a_mean_is_judged_by_its_interval() -> None:
    values: list[float | None] = np.random.default_rng(0).uniform(90.0, 110.0, 400).tolist()
    run = measured(values)
    assert first(run, "mean_e2e_ms=105").verdict is Verdict.FEASIBLE
    assert first(run, "mean_e2e_ms=95").verdict is Verdict.INFEASIBLE
    assert first(measured([100.0, 140.0, 60.0]), "mean_e2e_ms=101").verdict is Verdict.UNDECIDED


def test_a_queue_that_grows_without_end_breaks_what_is_not_decided() -> None:
    run = measured([10.0] * 100, stopped_by=StopReason.SATURATED)
    result = judge(run, "p99_e2e_ms=800", "p99_tpot_ms=800")
    assert [c.verdict for c in result.constraints[:2]] == [Verdict.INFEASIBLE, Verdict.UNDECIDED]
    assert result.constraints[0].violation is not None
    assert result.constraints[0].violation > 0.0


def test_nothing_counted_is_undecided() -> None:
    assert judge(measured([]), "p99_e2e_ms=800").verdict is Verdict.UNDECIDED


def test_an_objective_that_was_not_measured_is_no_score() -> None:
    run = measured([None] * 3)
    with pytest.raises(ValueError, match="p99_e2e_ms was not measured"):
        score(OBJECTIVES["p99_e2e"], (), run, summarize(run))


def test_relative_limits_multiply_the_baseline_and_absolute_ones_ignore_it() -> None:
    slos = [parse_slo(text, origin="test") for text in ("p99_e2e<=1.5x", "p99_ttft_ms=70")]
    limits = resolve_limits(slos, {"p99_e2e_ms": 200.0, "p99_ttft_ms": 1.0})
    assert [limit.limit_ms for limit in limits] == [300.0, 70.0]
    assert [limit.slo for limit in limits] == slos


def test_the_baseline_meets_a_limit_of_one_times_itself_by_definition() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        run = measured((rng.lognormal(3, 1, size=137)).tolist())
        own = judge(run, "p99_e2e<=1.0x", "mean_ttft<=1x", baseline=summarize(run), own=True)
        assert own.verdict is Verdict.FEASIBLE
        assert all(c.violation is not None and c.violation <= 0.0 for c in own.constraints)
        assert judge(run, "p99_e2e<=0.9x", baseline=summarize(run), own=True).verdict is Verdict.INFEASIBLE
        assert judge(run, "p99_e2e<=1.0x", baseline=summarize(run)).verdict is not Verdict.FEASIBLE


@pytest.mark.parametrize("baseline", [{}, {"p99_e2e_ms": None}, {"p99_e2e_ms": 0.0}])
def test_a_relative_limit_needs_a_measured_baseline(baseline: dict[str, float | None]) -> None:
    with pytest.raises(InputError, match=r"relative to the baseline \(trial 0\), which measured"):
        resolve_limits([parse_slo("p99_e2e<=1.0x", origin="test")], baseline)


_runs = st.lists(st.one_of(st.none(), st.floats(0.01, 1e6)), max_size=150)


@given(latencies=_runs, limit=st.floats(0.001, 1e7), slo=st.sampled_from(["p99", "p50", "p99.9", "mean", "p1"]))
def test_every_score_fits_a_record_and_agrees_with_itself(
    latencies: list[float | None], limit: float, slo: str
) -> None:
    result = judge(measured(latencies), *(f"{slo}_{metric}_ms={limit}" for metric in ("e2e", "ttft", "tpot", "itl")))
    json.dumps(asdict(result), allow_nan=False)
    for constraint in result.constraints:
        if constraint.verdict is not Verdict.UNDECIDED:
            assert constraint.violation is not None
            assert (constraint.violation > 0.0) == (constraint.verdict is Verdict.INFEASIBLE)


_values = st.lists(st.floats(0, 1e9), min_size=1, max_size=60)


@given(values=_values, percent=st.floats(0.1, 99.9))
def test_without_failures_it_is_numpys_percentile(values: list[float], percent: float) -> None:
    array = np.array(values)
    assert percentile_with_failures(array, percent) == pytest.approx(np.percentile(array, percent))


@given(values=st.lists(st.floats(0, 1e9), max_size=60), failures=st.integers(1, 60), percent=st.floats(0.1, 99.9))
def test_with_failures_it_is_that_of_very_slow_requests(values: list[float], failures: int, percent: float) -> None:
    got = percentile_with_failures(np.array(values + [math.inf] * failures), percent)
    slow = float(np.percentile(np.array(values + [1e300] * failures), percent))
    assert not math.isnan(got)
    if math.isinf(got):
        # Only a sliver of rounding may separate the two rules at a whole rank.
        rank = (len(values) + failures - 1) * percent / 100.0
        assert slow > 1e9 or rank == pytest.approx(round(rank), abs=1e-9)
    else:
        assert got == pytest.approx(slow)
