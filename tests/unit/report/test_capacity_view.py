"""What is said of a capacity."""

from __future__ import annotations

from optimizer.report.capacity_view import CapacityView, RateView, capacity_text, print_capacity

RATES = [
    RateView(rate_per_s=14.0, verdict="infeasible", probe=True, headroom=0.71, requests=180),
    RateView(rate_per_s=11.0, verdict="undecided", probe=True, headroom=1.31, requests=200),
    RateView(rate_per_s=12.5, verdict="infeasible", probe=False, headroom=None, requests=2500),
    RateView(rate_per_s=12.0, verdict="feasible", probe=False, headroom=1.08, requests=3000),
]
FOUND = CapacityView(
    value=12.0, high=12.6, confidence=0.9, knee=12.4, infeasible_above=12.5, served=15.0, metrics_at=12.0,
    rates=RATES,
)  # fmt: skip
NONE = CapacityView(
    value=None, high=None, confidence=None, knee=None, infeasible_above=None, served=15.0, metrics_at=0.3,
    rates=[],
)  # fmt: skip


def test_what_was_found_is_said_in_sentences():
    assert capacity_text(FOUND) == [
        "all limits hold up to 12 requests/s (90 % interval 12 to 12.6)",
        "they do not hold at 12.5 requests/s",
        "they seem to be used up at about 12.4 requests/s",
        "with more waiting than it can take the engine serves 15 requests/s",
        "metrics and limits below are those at 12 requests/s",
    ]
    unbounded = FOUND.model_copy(update={"high": None})
    assert capacity_text(unbounded)[0].endswith("(90 % interval 12 to unbounded)")


def test_no_rate_that_holds_is_no_capacity():
    assert capacity_text(NONE)[0] == "at none of the rates below all limits were shown to hold"
    assert not any("seem to be used up" in line for line in capacity_text(NONE))


def test_every_rate_stands_in_the_order_in_which_it_was_tried(console, printed):
    print_capacity(console, FOUND)
    rows = [line.split() for line in printed(console).splitlines() if line.startswith("  1") and " x " in line + " "]
    assert [row[0] for row in rows] == ["14", "11", "12"], "the third has no headroom to tell"
    text = printed(console)
    assert text.index("0.71 x") < text.index("a short look") < text.index("1.08 x")
    assert "3,000" in text
    assert "nan" not in text.lower()
