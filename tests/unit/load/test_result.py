"""A window looked at again and again comes to the same as one look at its end."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.load.completion import UNFINISHED, RequestTrace
from optimizer.load.result import WindowRecord, partial_result, to_load_result

START_S, END_S = 10.0, 14.0


@st.composite
def requests(draw: st.DrawFn) -> list[RequestTrace]:
    """Requests as they are once all is over, in order of schedule."""
    made: list[RequestTrace] = []
    for at_s in sorted(draw(st.lists(st.floats(8.0, 15.0), max_size=12))):
        sent_s = at_s + draw(st.floats(0.0, 0.5))
        trace = RequestTrace(at_s, 3, 100, sent_s=sent_s, ready_s=at_s, number=len(made))
        chunk_s = sent_s
        for _ in range(draw(st.integers(0, 6))):
            chunk_s += draw(st.floats(0.01, 1.0))
            trace.arrivals.append((chunk_s, draw(st.integers(1, 3))))
        trace.error = draw(st.sampled_from([None, "HTTP 503", UNFINISHED]))
        if trace.error != UNFINISHED:
            trace.ended_s = chunk_s
        made.append(trace)
    return made


def known_at(trace: RequestTrace, now_s: float) -> RequestTrace:
    seen = RequestTrace(trace.scheduled_s, 3, 100, ready_s=trace.ready_s, number=trace.number)
    if trace.sent_s is not None and trace.sent_s < now_s:
        seen.sent_s = trace.sent_s
    for arrival in trace.arrivals:
        if arrival[0] < now_s:
            seen.arrivals.append(arrival)
    if trace.ended_s is not None and trace.ended_s < now_s:
        seen.ended_s, seen.error = trace.ended_s, trace.error
    return seen


@given(requests(), st.lists(st.floats(START_S, END_S), max_size=4))
def test_looks_on_the_way_change_nothing(whole: list[RequestTrace], looks: list[float]) -> None:
    traces: list[RequestTrace] = []
    record = WindowRecord(traces, START_S)
    for now_s in [*sorted(looks), END_S + 5.0]:
        known = [known_at(trace, now_s) for trace in whole if trace.scheduled_s < now_s]
        for mine, new in zip(traces, known, strict=False):
            mine.sent_s, mine.ended_s, mine.error, mine.arrivals = new.sent_s, new.ended_s, new.error, new.arrivals
        traces.extend(known[len(traces) :])
        if now_s <= END_S:
            view = record.look(now_s)
            assert view.window_output_tokens >= view.tokens_per_s_bins.sum()
            assert view.now_s == now_s
    result = record.look(END_S + 5.0, END_S)
    at_once = to_load_result([known_at(trace, END_S + 5.0) for trace in whole], START_S, END_S)
    for name in ("scheduled_s", "sent_s", "first_token_s", "last_token_s", "output_tokens", "tokens_per_s_bins"):
        np.testing.assert_array_equal(getattr(result, name), getattr(at_once, name))
    assert result.errors == at_once.errors
    assert (result.window_output_tokens, result.window_requests) == (
        at_once.window_output_tokens,
        at_once.window_requests,
    )
    assert sorted(result.itl_s) == sorted(at_once.itl_s)
    inside = [tokens for t in whole for at, tokens in t.arrivals if START_S <= at < END_S]
    assert result.window_output_tokens == sum(inside) == result.tokens_per_s_bins.sum()


@given(requests())
def test_gaps_are_those_of_the_traces(whole: list[RequestTrace]) -> None:
    counted = [trace for trace in whole if START_S <= trace.scheduled_s < END_S and trace.error is None]
    expected = [gap for trace in counted for gap in trace.gaps_s]
    assert sorted(to_load_result(whole, START_S, END_S).itl_s) == pytest.approx(sorted(expected))


def test_requests_under_way_have_no_end_and_are_told_apart_from_failures() -> None:
    under_way, failed, served = (RequestTrace(at_s, 3, 2, sent_s=at_s) for at_s in (10.0, 10.5, 11.0))
    for trace in (under_way, failed, served):
        trace.arrivals.append((11.5, 1))
    failed.error, failed.ended_s = "HTTP 500", 11.6
    served.error, served.ended_s = None, 11.7
    view = WindowRecord([under_way, failed, served], START_S).look(12.0)
    assert view.errors == (UNFINISHED, "HTTP 500", None)
    assert view.under_way.tolist() == [True, False, False]
    assert math.isnan(view.last_token_s[0])
    assert view.first_token_s[0] == 11.5
    assert view.in_flight_per_s.tolist() == [3, 1]
    assert view.stopped_by is None


def test_rows_come_in_the_order_of_the_schedule_whoever_told_them_first() -> None:
    late, early = RequestTrace(11.0, 5, 2, number=1), RequestTrace(10.0, 4, 2, number=0)
    assert to_load_result([late, early], START_S, END_S).prompt_tokens.tolist() == [4, 5]


def test_a_run_broken_off_keeps_all_that_is_known_of_it() -> None:
    traces = [RequestTrace(at_s, 3, 2) for at_s in (1.0, 2.0)]
    assert partial_result(traces).scheduled_s.tolist() == [1.0, 2.0]
    assert partial_result([]).errors == ()
