"""What the command line says of rate, number and time, on top of a workload; and the levels of a sweep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.app.traffic import TrafficOptions, at_level, sweep_levels, with_traffic
from optimizer.config import load_workload
from optimizer.core.errors import InputError
from optimizer.load.arrival_process import ClosedLoop, PoissonArrivals

CLOSED = load_workload("chat-shared-prefix")
OPEN = load_workload("mixed-lengths")


def test_nothing_said_changes_nothing():
    assert with_traffic(CLOSED, TrafficOptions()) == CLOSED


def test_a_rate_makes_an_open_loop_that_concurrency_caps():
    assert with_traffic(CLOSED, TrafficOptions(rate_per_s=8.0)).arrivals == PoissonArrivals(
        kind="poisson", rate_per_s=8
    )
    capped = with_traffic(CLOSED, TrafficOptions(rate_per_s=8.0, concurrency=32)).arrivals
    assert (capped.rate_per_s, capped.max_in_flight) == (8.0, 32)


def test_concurrency_alone_makes_a_closed_loop():
    assert with_traffic(OPEN, TrafficOptions(concurrency=4)).arrivals == ClosedLoop(kind="closed_loop", in_flight=4)


def test_requests_and_duration_fix_the_window():
    window = with_traffic(CLOSED, TrafficOptions(requests=300)).window
    assert (window.min_requests, window.max_requests) == (300, 300)
    assert window.min_s < 0.01
    window = with_traffic(CLOSED, TrafficOptions(duration_s=20.0)).window
    assert (window.min_s, window.max_s, window.min_requests, window.max_requests) == (20.0, 20.0, 1, None)
    window = with_traffic(CLOSED, TrafficOptions(requests=300, duration_s=20.0)).window
    assert (window.max_s, window.max_requests) == (20.0, 300), "whichever comes first"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (TrafficOptions(rate_per_s=0.0), "--rate 0"),
        (TrafficOptions(rate_per_s=-3.0), "--rate -3"),
        (TrafficOptions(rate_per_s=float("nan")), "--rate nan"),
        (TrafficOptions(rate_per_s=float("inf")), "--rate inf"),
        (TrafficOptions(requests=0), "--requests 0"),
        (TrafficOptions(concurrency=-1), "--concurrency -1"),
        (TrafficOptions(duration_s=1e9), "--duration 1e\\+09"),
    ],
)
def test_a_number_out_of_range_is_named(options, named):
    with pytest.raises(InputError, match=f"{named}: it must be above 0 and at most [1-9]") as told:
        with_traffic(CLOSED, options)
    assert named.split()[0] in str(told.value.hint), "the example is of the same option"


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 12))
def test_levels_rise_from_low_to_high(low, high, steps):
    if low >= high:
        return
    levels = sweep_levels(f"{low}:{high}:{steps}", CLOSED)
    assert levels[0] == low
    assert levels[-1] == (high if steps > 1 else low)
    assert list(levels) == sorted(set(levels))
    assert all(level == int(level) for level in levels), "requests in flight are whole"


def test_automatic_levels_lie_around_the_workloads_own():
    assert (sweep_levels("auto", CLOSED)[0], sweep_levels("auto", CLOSED)[-1]) == (1.0, 256.0)
    rates = sweep_levels("auto", OPEN)
    assert (rates[0], rates[-1], len(rates)) == (2.0, 32.0, 6)


@pytest.mark.parametrize("text", ["x", "1", "64:1", "0:8", "1:nan", "1:inf", "1:8:0", "1:8:99", "a:b", "5:5"])
def test_levels_that_are_none_are_refused(text):
    with pytest.raises(InputError, match="--sweep"):
        sweep_levels(text, CLOSED)


def test_a_recorded_trace_has_no_level(tmp_path):
    (tmp_path / "t.csv").write_text("timestamp_s,prompt_tokens,output_tokens\n0,8,4\n1,8,4\n")
    (tmp_path / "w.yaml").write_text(
        "name: w\narrivals: {kind: trace}\nsource: {kind: trace, path: t.csv}\n"
        "warmup: {requests: 1, max_s: 5}\nwindow: {min_s: 1, max_s: 2, min_requests: 1}\n"
    )
    workload = load_workload(str(tmp_path / "w.yaml"))
    with pytest.raises(InputError, match="have no level"):
        sweep_levels("1:8", workload)
    replaced = with_traffic(workload, TrafficOptions(rate_per_s=4.0))
    assert sweep_levels("1:8:2", replaced) == (1.0, 8.0)


def test_a_level_changes_the_arrivals_alone():
    assert at_level(CLOSED, 5.0).arrivals.in_flight == 5
    level = at_level(OPEN, 3.5)
    assert (level.arrivals.rate_per_s, level.arrivals.max_in_flight) == (3.5, 32)
    assert level.window == OPEN.window
