"""Verdicts that may be asked for at any time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.core.scoring import Verdict
from optimizer.objectives.sequential import SequentialVerdict, SloTest, judge

P99 = SloTest(99.0, 1.0)


def latencies(n: int, p99: float, seed: int, sigma: float = 0.3) -> np.ndarray:
    return np.asarray(p99 * np.exp(sigma * (np.random.default_rng(seed).standard_normal(n) - 2.3263479)))


def test_a_percentile_five_percent_off_is_told_and_rarely_wrongly() -> None:
    above = [judge(P99, latencies(3000, 1.05, seed)).verdict for seed in range(40)]
    below = [judge(P99, latencies(3000, 0.95, seed)).verdict for seed in range(40)]
    assert above.count(Verdict.INFEASIBLE) >= 32
    assert below.count(Verdict.FEASIBLE) >= 32
    # More than 6 of 40 come about once in 4,000 times where 5 % are allowed.
    assert above.count(Verdict.FEASIBLE) <= 6
    assert below.count(Verdict.INFEASIBLE) <= 6


@pytest.mark.parametrize(
    ("p99", "n", "verdict"),
    [
        (0.5, 1000, Verdict.UNDECIDED),
        (0.5, 2000, Verdict.FEASIBLE),
        (2.0, 150, Verdict.INFEASIBLE),
        (50.0, 80, Verdict.INFEASIBLE),
        (1.0, 100, Verdict.UNDECIDED),
    ],
)
def test_what_is_far_from_the_limit_is_told_early(p99: float, n: int, verdict: Verdict) -> None:
    assert judge(P99, latencies(n, p99, seed=1)).verdict is verdict


def test_no_requests_are_undecided() -> None:
    state = judge(P99, np.empty(0))
    assert (state.verdict, state.n, state.interval_low, state.interval_high) == (Verdict.UNDECIDED, 0, None, None)


def test_few_requests_leave_the_upper_end_open() -> None:
    state = judge(P99, latencies(100, 0.5, seed=3))
    assert state.interval_low is not None
    assert state.interval_high is None


def test_failed_requests_count_as_over_any_limit() -> None:
    values = latencies(400, 0.5, seed=2)
    failed = np.zeros(400, dtype=np.bool_)
    failed[::10] = True
    state = judge(P99, values, failed)
    assert (state.over, state.verdict) == (40, Verdict.INFEASIBLE)
    assert judge(P99, np.where(failed, np.nan, values)) == state


def test_a_pending_request_waits_unless_it_is_over_already() -> None:
    values = latencies(300, 0.5, seed=2)
    pending = np.zeros(300, dtype=np.bool_)
    pending[[100, 250]] = True
    values[[100, 250]] = [1.2, 0.9]
    state = judge(P99, values, pending=pending)
    assert (state.n, state.over) == (250, 1)


def test_the_first_decision_stands() -> None:
    good, bad = latencies(2500, 0.6, seed=5), latencies(2500, 3.0, seed=6)
    running = SequentialVerdict(P99)
    states = [running.update(good[:n]) for n in range(50, 2501, 50)]
    decided = next(state for state in states if state.verdict is not Verdict.UNDECIDED)
    assert decided.verdict is Verdict.FEASIBLE
    later = running.update(np.concatenate([good, bad]))
    assert (later.verdict, later.decided_at) == (decided.verdict, decided.decided_at)
    assert later.evidence_for < later.needed_for


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), p99=st.sampled_from([0.6, 0.9, 1.1, 2.0]), step=st.integers(100, 700))
def test_asking_often_decides_no_later_than_asking_once(seed: int, p99: float, step: int) -> None:
    values = latencies(2000, p99, seed)
    running = SequentialVerdict(P99)
    for n in range(step, 2000, step):
        running.update(values[:n])
    state, once = running.update(values), judge(P99, values)
    assert (state.n, state.over) == (once.n, once.over)
    assert state.evidence_for == pytest.approx(once.evidence_for)
    if once.decided_at is not None:
        assert state.decided_at is not None
        assert state.decided_at <= once.decided_at


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), p99=st.floats(0.2, 4.0), unit=st.sampled_from([0.25, 8.0, 1024.0]))
def test_the_unit_does_not_matter_and_verdicts_agree_with_what_was_seen(seed: int, p99: float, unit: float) -> None:
    values = latencies(1200, p99, seed)
    state, scaled = judge(P99, values), judge(SloTest(99.0, unit), unit * values)
    assert (scaled.verdict, scaled.decided_at, scaled.over) == (state.verdict, state.decided_at, state.over)
    seen = values[: state.decided_at]
    if state.verdict is Verdict.FEASIBLE:
        assert np.mean(seen > P99.upper) < P99.allowed
    if state.verdict is Verdict.INFEASIBLE:
        assert np.mean(seen > P99.lower) > P99.allowed


@pytest.mark.parametrize("percentile", [50.0, 90.0, 95.0, 99.9])
def test_other_percentiles_are_judged_too(percentile: float) -> None:
    values = np.random.default_rng(4).exponential(size=30_000)
    true = -np.log(1.0 - percentile / 100.0)
    assert judge(SloTest(percentile, 1.3 * true), values).verdict is Verdict.FEASIBLE
    assert judge(SloTest(percentile, true / 1.3), values).verdict is Verdict.INFEASIBLE


@pytest.mark.parametrize(
    "wrong",
    [
        {"percentile": 100.0},
        {"percentile": 0.0},
        {"limit": 0.0},
        {"limit": float("inf")},
        {"level": 0.0},
        {"level": 0.5},
        {"tolerance": -0.1},
        {"tolerance": 1.0},
        {"longest_run": 0.5},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        SloTest(**{"percentile": 99.0, "limit": 1.0, **wrong})
