"""What `measure --objective capacity` shows: the highest rate that keeps every limit, and each rate that was tried."""

from __future__ import annotations

from pydantic import Field
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from optimizer.report.layout import heading, plain_table
from optimizer.report.view import View
from optimizer.report.wording import MISSING, number


class RateView(View):
    """One rate that was tried."""

    rate_per_s: float = Field(description="Arrivals per second.")
    verdict: str = Field(description="Of all limits together: feasible, infeasible or undecided.")
    probe: bool = Field(description="Whether it was only a short look, which asks for no verdict.")
    headroom: float | None = Field(description="Limit over observed latency, of the limit that has least of it.")
    requests: int = Field(description="Requests that were counted.")


class CapacityView(View):
    """The capacity of one configuration, in requests per second."""

    value: float | None = Field(
        description="Highest rate whose verdict is feasible, and the lower end of its interval; null when none is."
    )
    high: float | None = Field(description="Upper end of the interval; null when unbounded.")
    confidence: float | None = Field(description="Two-sided, of that interval.")
    knee: float | None = Field(description="Where the limits seem to be used up.")
    infeasible_above: float | None = Field(description="Lowest infeasible rate above the capacity.")
    served: float | None = Field(description="What the saturated engine served.")
    metrics_at: float = Field(description="The rate at which the metrics and limits of the view were measured.")
    rates: list[RateView] = Field(description="In the order in which they were tried.")


def print_capacity(console: Console, view: CapacityView) -> None:
    """Prints the capacity, and a table of the rates."""
    heading(console, "capacity")
    for line in capacity_text(view):
        console.print(Text(f"  {line}"))
    table = plain_table("requests/s", "verdict", "headroom", "requests")
    for rate in view.rates:
        headroom = MISSING if rate.headroom is None else f"{rate.headroom:.2f} x"
        table.add_row(f"{rate.rate_per_s:.4g}", _verdict(rate), headroom, number(float(rate.requests)))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def capacity_text(view: CapacityView) -> list[str]:
    """What was found, in sentences."""
    if view.value is None:
        lines = ["at none of the rates below all limits were shown to hold"]
    else:
        high = "unbounded" if view.high is None else f"{view.high:.4g}"
        value = f"{view.value:.4g}"
        interval = "" if view.confidence is None else f" ({100 * view.confidence:.0f} % interval {value} to {high})"
        lines = [f"all limits hold up to {value} requests/s{interval}"]
    if view.infeasible_above is not None:
        lines.append(f"they do not hold at {view.infeasible_above:.4g} requests/s")
    if view.knee is not None:
        lines.append(f"they seem to be used up at about {view.knee:.4g} requests/s")
    if view.served is not None:
        lines.append(f"with more waiting than it can take the engine serves {view.served:.4g} requests/s")
    return [*lines, f"metrics and limits below are those at {view.metrics_at:.4g} requests/s"]


def _verdict(rate: RateView) -> str:
    return "a short look" if rate.probe and rate.verdict != "infeasible" else rate.verdict
