"""What a limit is checked against: order, failures, requests under way, gaps between tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optimizer.core.measurement import UNFINISHED, LoadResult
from optimizer.core.stop_reason import StopReason
from optimizer.objectives import Limit, parse_slo, resolve_limits
from optimizer.objectives.goodput import good_requests, goodput_per_s
from optimizer.objectives.intervals import metric_interval, rate_per_second
from optimizer.objectives.latencies import latencies, request_gaps
from tests.unit.objectives.made import load_of

ALL = np.ones(3, dtype=np.bool_)


def limits(*texts: str) -> tuple[Limit, ...]:
    return resolve_limits([parse_slo(text, origin="test") for text in texts], {})


def gapped(gaps_ms: list[list[float]], first_s: list[float], at: list[int] | None = None) -> LoadResult:
    """Requests with these gaps, kept in the order `at`."""
    order = range(len(gaps_ms)) if at is None else at
    kept = [gap for number in order for gap in gaps_ms[number]]
    starts, seen = [0] * len(gaps_ms), 0
    for number in order:
        starts[number], seen = seen, seen + len(gaps_ms[number])
    spans_s = np.array([sum(gaps) / 1000.0 for gaps in gaps_ms])
    return replace(
        load_of([1.0] * len(gaps_ms)),
        first_token_s=np.array(first_s),
        last_token_s=np.array(first_s) + spans_s,
        output_tokens=np.array([len(gaps) + 1 for gaps in gaps_ms]),
        itl_s=np.array(kept) / 1000.0,
        gaps_at=np.array(starts) if at is not None else np.zeros(0, dtype=np.int64),
    )


@pytest.mark.parametrize(
    ("metric", "values_ms"),
    [("e2e", [30.0, np.inf, 10.0]), ("ttft", [6.0, np.inf, 2.0]), ("tpot", [6.0, np.inf, 2.0])],
)
def test_requests_keep_their_order_and_failed_ones_never_end(metric: str, values_ms: list[float]) -> None:
    assert latencies(load_of([30.0, None, 10.0]), metric).values_ms.tolist() == pytest.approx(values_ms)


def test_an_answer_of_one_token_has_no_time_per_output_token() -> None:
    assert latencies(load_of([30.0, 10.0], tokens=1), "tpot").values_ms.size == 0


def test_a_request_under_way_counts_with_its_age_while_the_load_runs() -> None:
    running = replace(load_of([30.0, None, 10.0]), errors=(None, UNFINISHED, None), now_s=0.5)
    found = latencies(running, "e2e")
    assert found.pending.tolist() == [False, True, False]
    assert found.values_ms[1] == pytest.approx(490.0)
    assert found.known_ms.tolist() == pytest.approx([30.0])
    ended = replace(running, stopped_by=StopReason.BUDGET)
    assert not ended.pending.any()
    assert np.isinf(latencies(ended, "e2e").values_ms[1])
    assert replace(running, stopped_by=StopReason.DOMINATED).pending.any()


@pytest.mark.parametrize("at", [None, [0, 1, 2], [2, 0, 1]])
def test_gaps_belong_to_their_request_however_they_are_kept(at: list[int] | None) -> None:
    load = gapped([[1.0, 2.0], [30.0], [4.0, 5.0, 6.0]], [0.0, 0.0, 0.01], at)
    got = {number: (gaps_s * 1000.0).tolist() for number, gaps_s in request_gaps(load, ALL).each()}
    assert got == {0: pytest.approx([1, 2]), 1: pytest.approx([30]), 2: pytest.approx([4, 5, 6])}
    assert latencies(load, "itl").values_ms.tolist() == pytest.approx([1, 2, 4, 5, 6, 30]), "by their end"


def test_gaps_later_than_a_request_under_way_was_due_wait_for_it() -> None:
    load = gapped([[1.0, 2.0], [30.0], [4.0, 5.0, 6.0]], [0.0, 0.0, 0.0])
    running = replace(load, errors=(None, None, UNFINISHED), itl_s=load.itl_s[:3], now_s=1.0)
    assert running.scheduled_s[2] == 0.02
    assert latencies(running, "itl").values_ms.tolist() == pytest.approx([1.0, 2.0])


def test_a_failed_request_stands_for_as_many_gaps_as_others_have() -> None:
    assert np.isinf(latencies(load_of([10.0, 20.0, None]), "itl").values_ms).sum() == 4
    assert np.isinf(latencies(load_of([None, None]), "itl").values_ms).sum() == 2


def test_gaps_that_do_not_match_the_tokens_are_a_fault() -> None:
    with pytest.raises(ValueError, match="7 gaps"):
        latencies(replace(load_of([10.0, 20.0]), itl_s=np.zeros(7)), "itl")


def test_good_requests_meet_every_limit() -> None:
    load = load_of([30.0, None, 10.0, 25.0])
    assert good_requests(load, limits("p99_e2e_ms=28")).tolist() == [False, False, True, True]
    assert good_requests(load, limits("p50_e2e_ms=28", "p99_ttft_ms=3")).tolist() == [False, False, True, False]
    assert good_requests(load, limits("mean_tpot_ms=5.5")).tolist() == [False, False, True, True]
    assert goodput_per_s(load, limits("p99_e2e_ms=28")) == pytest.approx(2 / 3 * 3 / 10.0)


def test_of_its_gaps_a_good_request_meets_the_limits_own_statistic() -> None:
    load = gapped([[1.0, 9.0], [3.0], [4.0, 5.0, 6.0]], [0.0, 0.0, 0.0])
    assert good_requests(load, limits("mean_itl_ms=5.1")).tolist() == [True, True, True]
    assert good_requests(load, limits("p99_itl_ms=8")).tolist() == [False, True, True]


def test_rates_have_an_interval_from_the_seconds_of_the_window() -> None:
    load = load_of([10.0] * 50, tokens_per_s_bins=np.array([98, 104, 99, 101, 97, 103, 100, 98]))
    found = metric_interval(load, "output_tokens_per_s", 100.0, confidence=0.9)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert 96.0 < found.low < 100.0 < found.high < 104.0
    assert (found.low + found.high) / 2.0 == pytest.approx(100.0)
    assert metric_interval(load_of([10.0]), "output_tokens_per_s", 100.0) is None
    assert metric_interval(load, "preemptions", 3.0) is None


def test_all_tokens_per_second_count_prompts_when_they_are_due() -> None:
    load = load_of([10.0] * 350 + [None] * 50, tokens_per_s_bins=np.array([98, 104, 99, 101]))
    per_second = rate_per_second(load, "total_tokens_per_s")
    assert per_second is not None
    assert per_second.tolist() == [98 + 800, 104 + 800, 99 + 800, 101 + 400]
    assert metric_interval(load, "total_tokens_per_s", 800.0) is not None


def test_requests_per_second_leave_out_the_time_before_the_first_can_end() -> None:
    per_second = rate_per_second(load_of([1500.0] * 500), "requests_per_s")
    assert per_second is not None
    assert per_second.tolist() == [100.0] * 4 + [50.0] + [0.0] * 3


def test_an_interval_of_a_latency_is_open_where_the_data_do_not_bound_it() -> None:
    few = metric_interval(load_of([10.0] * 50), "p99_e2e_ms", 10.0)
    assert few is not None
    assert few.high is None
    mean = metric_interval(load_of([10.0, 12.0] * 50), "mean_e2e_ms", 11.0)
    assert mean is not None
    assert mean.low is not None
    assert mean.low < 11.0


def test_no_interval_of_a_latency_reaches_below_zero() -> None:
    swings = [1.0] * 30 + [100.0] * 30 + [1.0] * 30
    found = metric_interval(load_of(swings), "mean_e2e_ms", 34.0)
    assert found is not None
    assert found.low == 0.0
