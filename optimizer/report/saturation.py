"""The saturation curve: throughput and latency over rising load, and its knee."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from rich.console import Console
from rich.text import Text

from optimizer.report.layout import heading, plain_table
from optimizer.report.view import View
from optimizer.report.wording import MISSING, metric_label, metric_value, number, table_value

_BAR_COLUMNS = 24
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SHOWN = ("output_tokens_per_s", "requests_per_s", "p50_ttft_ms", "p99_ttft_ms", "p50_e2e_ms", "p99_e2e_ms")
_FEWEST_FOR_A_KNEE = 3


class CurvePoint(View):
    """One level of a sweep."""

    level: float = Field(description="Requests in flight, or arrivals per second.")
    metrics: dict[str, float | None] = Field(description="Metric name to value, null where there is none.")
    verdict: str | None = Field(description="feasible, infeasible or undecided; null without limits.")
    stopped_by: str | None = Field(description="Why the window closed, such as `saturated`.")


class SaturationCurve(View):
    """`measure --sweep`."""

    unit: str = Field(description="Of the levels: `requests in flight` or `requests/s`.")
    points: list[CurvePoint] = Field(description="Lowest level first.")
    knee: float | None = Field(description="The level of the largest power; null when it does not lie within.")
    highest_feasible: float | None = Field(description="The highest level at which all limits hold; null if none.")


def saturation_curve(points: Sequence[CurvePoint], unit: str) -> SaturationCurve:
    """The curve with what is read off it."""
    feasible = [point.level for point in points if point.verdict == "feasible"]
    return SaturationCurve(
        unit=unit, points=list(points), knee=knee_of(points), highest_feasible=max(feasible, default=None)
    )


def knee_of(points: Sequence[CurvePoint]) -> float | None:
    """The level beyond which more load costs more latency than it brings throughput.

    That is where the power, throughput / mean end-to-end latency, is largest (Kleinrock, Power and deterministic rules
    of thumb for probabilistic problems in computer communications, ICC 1979). None of fewer than three levels, or when
    power is largest at the last: then the knee may lie beyond.
    """
    powers = [power for point in points if (power := _power(point)) is not None]
    if len(powers) < _FEWEST_FOR_A_KNEE or len(powers) != len(points):
        return None
    best = max(range(len(powers)), key=powers.__getitem__)
    return None if best == len(powers) - 1 else points[best].level


def _power(point: CurvePoint) -> float | None:
    throughput, latency_ms = point.metrics.get("output_tokens_per_s"), point.metrics.get("mean_e2e_ms")
    return throughput / latency_ms if throughput is not None and latency_ms else None


def print_curve(console: Console, curve: SaturationCurve) -> None:
    """Prints the table, two small plots, and the knee."""
    heading(console, "saturation curve")
    judged = any(point.verdict is not None for point in curve.points)
    table = plain_table(curve.unit, *map(metric_label, _SHOWN), "failed", *(["limits"] if judged else []))
    for point in curve.points:
        cells = [table_value(name, point.metrics.get(name)) for name in _SHOWN]
        failed = metric_value("error_rate", point.metrics.get("error_rate"))
        table.add_row(f"{point.level:g}", *cells, failed, *([point.verdict or MISSING] if judged else []))
    console.print(table)
    _print_plot(console, curve, "output_tokens_per_s")
    _print_plot(console, curve, "p99_e2e_ms")
    console.print()
    for line in curve_text(curve):
        console.print(Text(line))


def _print_plot(console: Console, curve: SaturationCurve, name: str) -> None:
    values = [point.metrics.get(name) for point in curve.points]
    largest = max((value for value in values if value is not None), default=0.0)
    if largest <= 0.0:
        return
    heading(console, metric_label(name))
    width = max(len(f"{point.level:g}") for point in curve.points)
    for point, value in zip(curve.points, values, strict=True):
        mark = "  <- knee" if point.level == curve.knee else ""
        shown = bar((value or 0.0) / largest)
        console.print(Text(f"  {point.level:>{width}g} {shown} {metric_value(name, value)}{mark}"), soft_wrap=True)


def bar(share: float) -> str:
    """A bar of a fixed width that is filled from the left, to an eighth of a column.

    >>> bar(0.5).rstrip() == "█" * 12
    True
    """
    eighths = round(max(0.0, min(1.0, share)) * _BAR_COLUMNS * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR_COLUMNS)


def curve_text(curve: SaturationCurve) -> list[str]:
    """What the curve says, in sentences."""
    lines = []
    if curve.knee is not None:
        lines.append(f"knee: {curve.knee:g} {curve.unit}, where throughput per latency is largest")
    elif len(curve.points) >= _FEWEST_FOR_A_KNEE:
        lines.append("knee: not within these levels, throughput per latency still rises at the highest")
    else:
        lines.append(f"knee: not to be told from {number(float(len(curve.points)))} levels")
    if any(point.verdict is not None for point in curve.points):
        if curve.highest_feasible is None:
            lines.append("at none of these levels all limits are shown to hold")
        else:
            lines.append(f"limits hold up to {curve.highest_feasible:g} {curve.unit} of these levels")
    last = curve.points[-1] if curve.points else None
    if last is not None and last.stopped_by == "saturated":
        lines.append(f"at {last.level:g} {curve.unit} more came than was served, so higher levels were left out")
    return lines
