"""Scores: verdicts, failed requests as infinitely slow ones, and numbers that any record can hold."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.errors import InputError
from optimizer.core.measurement import EngineMetrics, HostUsage, LoadResult, Measurement
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.metrics import summarize
from optimizer.objectives import OBJECTIVES, parse_slo, resolve_limits, score
from optimizer.objectives.score import UNBOUNDED_VIOLATION, fewest_values, latencies_ms, percentile_with_failures

THROUGHPUT = OBJECTIVES["throughput"]


def measured(e2e_ms: Sequence[float | None], *, tokens: int = 5) -> Measurement:
    """Requests with these latencies, None for a failed one; the first token comes at a fifth of each."""
    n = len(e2e_ms)
    latency_s = np.array([math.nan if x is None else x / 1000.0 for x in e2e_ms], dtype=np.float64)
    succeeded = sum(x is not None for x in e2e_ms)
    load = LoadResult(
        window_start_s=0.0,
        window_s=10.0,
        scheduled_s=np.zeros(n),
        sent_s=np.zeros(n),
        first_token_s=latency_s / 5.0,
        last_token_s=latency_s,
        prompt_tokens=np.full(n, 8),
        output_tokens=np.full(n, tokens),
        errors=tuple("HTTP 503" if x is None else None for x in e2e_ms),
        itl_s=np.full(succeeded * (tokens - 1), 0.01),
        window_output_tokens=100,
        window_requests=succeeded,
    )
    return Measurement(load, EngineMetrics(), HostUsage())


def judge(measurement: Measurement, *slos: str, baseline: dict[str, float | None] | None = None) -> Score:
    limits = resolve_limits([parse_slo(text, origin="test") for text in slos], baseline or {})
    return score(THROUGHPUT, limits, measurement, summarize(measurement))


def first(measurement: Measurement, slo: str) -> Constraint:
    return judge(measurement, slo).constraints[0]


def test_enough_requests_decide_by_the_observed_percentile() -> None:
    run = measured([float(x) for x in range(1, 201)])
    held, broken = first(run, "p99_e2e_ms=199"), first(run, "p99_e2e_ms=198")
    assert held.observed == pytest.approx(198.01)
    assert (held.verdict, broken.verdict) == (Verdict.FEASIBLE, Verdict.INFEASIBLE)
    assert held.violation == pytest.approx(math.log(198.01 / 199))
    assert broken.violation == pytest.approx(math.log(198.01 / 198))
    # Binomial(200, 0.99) has its 2.5 % quantile at 195 and its 97.5 % quantile at 200, which is past the last value.
    assert held.low == 195.0
    assert held.high is None


def test_value_and_order_of_constraints() -> None:
    result = judge(measured([10.0] * 200), "p99_ttft_ms=5", "p50_e2e_ms=20")
    assert (result.metric, result.value, result.maximise) == ("output_tokens_per_s", 10.0, True)
    assert [c.name for c in result.constraints] == ["p99_ttft_ms", "p50_e2e_ms", "error_rate"]
    assert result.verdict is Verdict.FEASIBLE


def test_without_limits_only_the_error_rate_counts() -> None:
    assert judge(measured([10.0] * 3)).verdict is Verdict.FEASIBLE
    assert judge(measured([10.0] * 3 + [None])).verdict is Verdict.INFEASIBLE


@pytest.mark.parametrize(("percent", "fewest"), [(50.0, 2), (90.0, 10), (99.0, 100), (99.9, 1000), (1.0, 2)])
def test_of_fewer_requests_a_percentile_is_the_largest_value(percent: float, fewest: int) -> None:
    assert fewest_values(percent) == fewest


def test_too_few_requests_leave_the_limit_undecided() -> None:
    assert first(measured([10.0] * 99), "p99_e2e_ms=800").verdict is Verdict.UNDECIDED
    assert first(measured([10.0] * 100), "p99_e2e_ms=800").verdict is Verdict.FEASIBLE


def test_too_few_requests_decide_against_a_setting_that_is_surely_over() -> None:
    assert first(measured([900.0] * 60), "p99_e2e_ms=800").verdict is Verdict.INFEASIBLE
    assert first(measured([900.0] + [10.0] * 59), "p99_e2e_ms=800").verdict is Verdict.UNDECIDED


def test_overall_verdict_is_the_worst() -> None:
    assert judge(measured([10.0] * 50), "p50_e2e_ms=20", "p99_e2e_ms=20").verdict is Verdict.UNDECIDED
    assert judge(measured([10.0] * 50), "p50_e2e_ms=5", "p99_e2e_ms=20").verdict is Verdict.INFEASIBLE


def test_a_failed_request_is_over_any_limit() -> None:
    run = measured([10.0] * 195 + [None] * 5)
    assert first(run, "p50_e2e_ms=20").verdict is Verdict.FEASIBLE
    constraint = first(run, "p99_e2e_ms=20")
    assert constraint.verdict is Verdict.INFEASIBLE
    assert constraint.observed is None
    assert constraint.violation == UNBOUNDED_VIOLATION
    assert first(run, "mean_ttft_ms=20").verdict is Verdict.INFEASIBLE


def test_dropping_requests_is_no_better_than_serving_them_late() -> None:
    late = first(measured([10.0] * 190 + [9000.0] * 10), "p99_e2e_ms=20")
    dropped = first(measured([10.0] * 190 + [9000.0] * 5 + [None] * 5), "p99_e2e_ms=20")
    assert late.violation is not None
    assert dropped.violation is not None
    assert dropped.violation >= late.violation > UNBOUNDED_VIOLATION


def test_failed_requests_count_as_many_gaps_as_others_have() -> None:
    values = latencies_ms(measured([10.0, 20.0, None]).load, "itl")
    assert np.isinf(values).sum() == 4
    assert values.size == 12
    assert np.isinf(latencies_ms(measured([None, None]).load, "itl")).sum() == 2


def test_error_rate_of_one_percent_is_the_most() -> None:
    at, over = judge(measured([1.0] * 198 + [None] * 2)), judge(measured([1.0] * 197 + [None] * 3))
    assert (at.verdict, over.verdict) == (Verdict.FEASIBLE, Verdict.INFEASIBLE)
    constraint = over.constraints[-1]
    assert (constraint.name, constraint.limit, constraint.observed) == ("error_rate", 0.01, 0.015)
    assert constraint.violation == pytest.approx(math.log(1.5))
    assert constraint.low is not None
    assert constraint.high is not None
    assert constraint.low < 0.015 < constraint.high


def test_nothing_counted_is_undecided() -> None:
    assert judge(measured([]), "p99_e2e_ms=800").verdict is Verdict.UNDECIDED


def test_an_objective_that_was_not_measured_is_no_score() -> None:
    run = measured([None] * 3)
    with pytest.raises(ValueError, match="p99_e2e_ms was not measured"):
        score(OBJECTIVES["p99_e2e"], (), run, summarize(run))


def test_the_baseline_meets_a_limit_of_one_times_itself() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        run = measured((rng.lognormal(3, 1, size=137)).tolist())
        constraint = judge(run, "p99_e2e<=1.0x", baseline=summarize(run)).constraints[0]
        assert constraint.verdict is Verdict.FEASIBLE
        assert constraint.violation is not None
        assert constraint.violation <= 0.0


def test_relative_limits_multiply_the_baseline_and_absolute_ones_ignore_it() -> None:
    slos = [parse_slo(text, origin="test") for text in ("p99_e2e<=1.5x", "p99_ttft_ms=70")]
    limits = resolve_limits(slos, {"p99_e2e_ms": 200.0, "p99_ttft_ms": 1.0})
    assert [limit.limit_ms for limit in limits] == [300.0, 70.0]
    assert [limit.slo for limit in limits] == slos


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
