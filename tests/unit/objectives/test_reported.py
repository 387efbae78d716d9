"""The score of figures that an external evaluator reports."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.reported import ReportedMetrics
from optimizer.core.scoring import Verdict
from optimizer.objectives import OBJECTIVES, USUAL_RULES, Limit, parse_slo
from optimizer.objectives.reported import score_reported

THROUGHPUT = OBJECTIVES["throughput"]
LIMIT = Limit(parse_slo("p99_e2e_ms=800", origin="test"), 800.0)
Z = 1.6448536269514722
"""Normal quantile of 0.95."""

figures = st.floats(min_value=1e-3, max_value=1e9)
shares = st.floats(min_value=0.0, max_value=10.0)


def reported(e2e_ms: float, error_ms: float | None = None, **more: float) -> ReportedMetrics:
    errors = {} if error_ms is None else {"p99_e2e_ms": error_ms}
    return ReportedMetrics({"output_tokens_per_s": 100.0, "p99_e2e_ms": e2e_ms, **more}, errors)


def verdict(e2e_ms: float, error_ms: float | None = None) -> Verdict:
    return score_reported(THROUGHPUT, [LIMIT], reported(e2e_ms, error_ms)).verdict


@pytest.mark.parametrize(
    ("e2e_ms", "error_ms", "expected"),
    [
        (800.0, None, Verdict.FEASIBLE),
        (800.1, None, Verdict.INFEASIBLE),
        # 1.05 times the limit is still feasible, and 0.95 times it is already infeasible, by the usual tolerance.
        (700.0, 0.99 * 700.0 * math.log(840 / 700) / Z, Verdict.FEASIBLE),
        (700.0, 1.01 * 700.0 * math.log(840 / 700) / Z, Verdict.UNDECIDED),
        (900.0, 0.99 * 900.0 * math.log(900 / 760) / Z, Verdict.INFEASIBLE),
        (900.0, 1.01 * 900.0 * math.log(900 / 760) / Z, Verdict.UNDECIDED),
        (500.0, 0.0, Verdict.FEASIBLE),
        (0.0, 1.0, Verdict.FEASIBLE),
        (0.0, 1e6, Verdict.UNDECIDED),
        (1e-300, 1e300, Verdict.FEASIBLE),
    ],
)
def test_a_limit_is_decided_by_the_value_and_its_error(e2e_ms, error_ms, expected):
    assert verdict(e2e_ms, error_ms) is expected


def test_the_interval_is_one_of_the_logarithm():
    scored = score_reported(THROUGHPUT, [LIMIT], replace(reported(500.0), standard_errors={"p99_e2e_ms": 50.0}))
    constraint = scored.constraints[0]
    assert constraint.low == pytest.approx(500.0 * math.exp(-Z * 0.1))
    assert constraint.high == pytest.approx(500.0 * math.exp(Z * 0.1))
    assert (constraint.confidence, constraint.n) == (USUAL_RULES.confidence, None)
    assert constraint.violation == pytest.approx(math.log(500.0 / 800.0))
    assert (scored.low, scored.high, scored.confidence) == (None, None, None), "the objective came without an error"


def test_without_an_error_no_interval_is_claimed():
    scored = score_reported(THROUGHPUT, [LIMIT], reported(900.0))
    assert (scored.constraints[0].low, scored.constraints[0].high, scored.constraints[0].confidence) == (None,) * 3


def test_the_objective_has_its_interval_too():
    errors = {"output_tokens_per_s": 2.0}
    scored = score_reported(THROUGHPUT, [], replace(reported(1.0), standard_errors=errors))
    assert scored.low < scored.value == 100.0 < scored.high
    assert (scored.confidence, scored.verdict, scored.maximise) == (0.9, Verdict.FEASIBLE, True)


def test_a_latency_is_minimised():
    scored = score_reported(OBJECTIVES["p99_e2e"], [], reported(900.0))
    assert (scored.metric, scored.value, scored.maximise) == ("p99_e2e_ms", 900.0, False)


def test_a_baseline_keeps_its_own_multiple_however_unsure_it_is():
    own = replace(LIMIT, own=True)
    assert score_reported(THROUGHPUT, [own], reported(800.0, 500.0)).verdict is Verdict.FEASIBLE


@pytest.mark.parametrize(
    ("share", "error", "allowed", "expected"),
    [
        (0.0, None, 0.01, Verdict.FEASIBLE),
        (0.02, None, 0.01, Verdict.INFEASIBLE),
        (0.02, 0.02, 0.01, Verdict.UNDECIDED),
        (0.0, None, 0.0, Verdict.FEASIBLE),
        (0.02, None, 0.0, Verdict.INFEASIBLE),
    ],
)
def test_failed_requests_are_judged_where_they_are_reported(share, error, allowed, expected):
    told = ReportedMetrics(
        {"output_tokens_per_s": 1.0, "error_rate": share}, {} if error is None else {"error_rate": error}
    )
    scored = score_reported(THROUGHPUT, [], told, replace(USUAL_RULES, error_rate=allowed))
    assert scored.verdict is expected
    assert [constraint.name for constraint in scored.constraints] == ["error_rate"]


def test_where_they_are_not_reported_nothing_is_said_of_them():
    assert score_reported(THROUGHPUT, [], reported(1.0)).constraints == ()


@given(value=figures, relative=shares)
def test_the_violation_lies_on_the_side_of_the_verdict_and_all_is_finite(value, relative):
    scored = score_reported(THROUGHPUT, [LIMIT], reported(value, relative * value))
    constraint = scored.constraints[0]
    assert constraint.violation is not None
    assert math.isfinite(constraint.violation)
    assert constraint.low <= value <= constraint.high < math.inf
    if constraint.verdict is Verdict.FEASIBLE:
        assert constraint.violation <= 0.0
    if constraint.verdict is Verdict.INFEASIBLE:
        assert constraint.violation > 0.0


@given(value=figures, error=shares, more=shares)
def test_more_error_never_turns_one_verdict_into_the_other(value, error, more):
    before, after = verdict(value, error * value), verdict(value, (error + more) * value)
    assert after in (before, Verdict.UNDECIDED)
