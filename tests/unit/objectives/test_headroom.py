"""Where the headroom is used up, on curves whose crossing is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.objectives.headroom import Headroom, crossing

SERVED = 100.0


def on_a_line(knee: float, rates: list[float], requests: int = 1000) -> list[Headroom]:
    """The headroom is 1 at the knee and 0 at what is served."""
    return [Headroom(rate, (SERVED - rate) / (SERVED - knee), requests, 0.05) for rate in rates]


@given(knee=st.floats(5.0, 95.0), share=st.floats(0.1, 0.99))
def test_one_rate_tells_the_crossing_of_a_line_to_saturation(knee: float, share: float) -> None:
    found = crossing(on_a_line(knee, [knee * share]), SERVED)
    assert found is not None
    assert found.rate_per_s == pytest.approx(knee, rel=1e-6)


@given(knee=st.floats(60.0, 95.0), rates=st.lists(st.floats(0.9, 1.04), min_size=2, max_size=6))
def test_several_rates_tell_the_same(knee: float, rates: list[float]) -> None:
    found = crossing(on_a_line(knee, [min(knee * rate, 99.0) for rate in rates]), SERVED)
    assert found is not None
    assert found.rate_per_s == pytest.approx(knee, rel=1e-6)


def test_a_curve_that_falls_late_is_followed_where_it_is_near_one() -> None:
    bent = [Headroom(rate, 1.0 + (80.0 - rate) * (0.01 if rate < 80.0 else 0.1), 5000) for rate in (60, 70, 78, 81)]
    found = crossing(bent, SERVED)
    assert found is not None
    assert found.rate_per_s == pytest.approx(80.0, rel=0.05)


def test_many_requests_count_more_than_few() -> None:
    few, many = Headroom(50.0, 1.5, 100), Headroom(50.0, 1.0, 10_000)
    found = crossing([few, many], SERVED)
    assert found is not None
    assert found.rate_per_s == pytest.approx(50.0, rel=0.01)


def test_more_is_served_than_a_rate_that_kept_its_limits() -> None:
    found = crossing([Headroom(120.0, 1.5, 1000)], SERVED)
    assert found is not None
    assert found.rate_per_s > 120.0


def test_nothing_tells_nothing() -> None:
    assert crossing([], SERVED) is None
    assert crossing([Headroom(200.0, 0.1, 50)], SERVED) is None


def test_the_error_falls_with_that_of_the_headroom_and_is_unbounded_without_any() -> None:
    rough, fine = (crossing([Headroom(50.0, 1.1, 1000, error)], SERVED) for error in (0.3, 0.05))
    assert rough is not None
    assert fine is not None
    assert fine.error < rough.error
    low, high = fine.end(-1.645), fine.end(1.645)
    assert low is not None
    assert high is not None
    assert low < fine.rate_per_s < high
    unknown = crossing([Headroom(50.0, 1.1, 1000)], SERVED)
    assert unknown is not None
    assert unknown.error == math.inf
    assert unknown.end(1.645) is None
