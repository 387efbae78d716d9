"""The saturation curve and its knee."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.report.saturation import CurvePoint, bar, curve_text, knee_of, print_curve, saturation_curve


def point(level: float, throughput: float | None, mean_e2e_ms: float | None, verdict: str | None = None, **more):
    metrics = {"output_tokens_per_s": throughput, "mean_e2e_ms": mean_e2e_ms, "p99_e2e_ms": mean_e2e_ms}
    return CurvePoint(level=level, metrics=metrics, verdict=verdict, stopped_by=more.get("stopped_by", "window"))


def served(levels: list[int], *, most: float, alone_ms: float) -> list[CurvePoint]:
    """A server that serves `most` requests at once in `alone_ms` each, and queues the others (Little's law)."""
    points = []
    for users in levels:
        rate = min(users, most) / alone_ms
        points.append(point(float(users), 1000.0 * rate, users / rate))
    return points


@pytest.mark.parametrize("most", [4, 8, 16])
def test_the_knee_of_a_known_server_is_where_its_queue_begins(most):
    assert knee_of(served([1, 2, 4, 8, 16, 32, 64], most=most, alone_ms=100.0)) == most


def test_a_server_that_is_not_full_has_its_knee_beyond():
    assert knee_of(served([1, 2, 4], most=64, alone_ms=100.0)) is None


def test_few_levels_or_a_level_without_a_figure_have_none():
    assert knee_of(served([1, 64], most=4, alone_ms=100.0)) is None
    assert knee_of([*served([1, 2, 64], most=1, alone_ms=100.0), point(128.0, None, None)]) is None


def test_the_highest_feasible_level_is_told():
    points = [point(1, 1, 1, "feasible"), point(2, 2, 1, "feasible"), point(4, 2, 3, "undecided"),
              point(8, 2, 9, "infeasible")]  # fmt: skip
    curve = saturation_curve(points, "requests/s")
    assert curve.highest_feasible == 2
    assert "limits hold up to 2 requests/s of these levels" in curve_text(curve)
    assert saturation_curve(points[2:], "requests/s").highest_feasible is None


def test_a_level_that_was_not_served_ends_the_curve_in_words():
    curve = saturation_curve([point(1, 1, 1), point(2, 2, 1, stopped_by="saturated")], "requests/s")
    assert any("more came than was served" in line for line in curve_text(curve))


@given(st.floats(0.0, 1.0))
def test_a_bar_has_one_width(share):
    assert len(bar(share)) == 24


def test_bars_grow(console, printed):
    assert [len(bar(share).rstrip()) for share in (0.0, 0.25, 0.5, 1.0)] == [0, 6, 12, 24]


def test_the_curve_is_printed_with_its_knee(console, printed):
    print_curve(console, saturation_curve(served([1, 4, 16], most=4, alone_ms=100.0), "requests in flight"))
    text = printed(console)
    assert text.count("<- knee") == 2
    assert "knee: 4 requests in flight" in text
