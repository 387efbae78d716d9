"""What `measure` shows: every metric with its interval, the limits with their evidence, and what bound the run."""

from __future__ import annotations

from pydantic import Field
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from optimizer.report.capacity_view import CapacityView, print_capacity
from optimizer.report.layout import copyable, heading, labelled, plain_table
from optimizer.report.limit_view import LimitView
from optimizer.report.saturation import SaturationCurve, print_curve
from optimizer.report.secrets import hide_secrets
from optimizer.report.simulation import SIMULATED
from optimizer.report.view import View
from optimizer.report.wording import MISSING, metric_label, metric_value, number, table_value

OFFLINE = "OFFLINE: all requests at once. This is batch throughput; no server in use has these latencies or this rate."
BROKEN_OFF = "BROKEN OFF: the server vanished. What was seen before stands below; it is no measurement."
_UNBOUNDED = "unbounded"
_WIDE_COLUMNS = 100
"""From this width on there is room for the names that scripts use."""


class MetricView(View):
    """One metric."""

    name: str = Field(description="Name, with its unit at the end.")
    value: float | None = Field(description="Null where there is no figure.")
    low: float | None = Field(description="Lower end of its interval; null when unbounded or when it has none.")
    high: float | None = Field(description="Upper end; null when unbounded or when it has none.")
    has_interval: bool = Field(description="Whether an interval can be told at all; an end of it may be unbounded.")


class BoundView(View):
    """What bound the run."""

    kind: str = Field(description="Such as `kv_pool`, `api_server`, `client` or `unknown`.")
    detail: str = Field(description="Why, in a sentence.")
    evidence: list[str] = Field(description="What else was seen, a figure each.")


class MeasureView(View):
    """`measure --json`."""

    subject: str = Field(description="What was measured: the command, or the server's address.")
    mode: str = Field(description="`online`, `offline` (batch), `sweep` or `capacity`.")
    simulated: bool = Field(description="Whether the engine was the simulated one.")
    complete: bool = Field(description="False when the server vanished: the figures are what was seen before.")
    engine: str | None = Field(description="Name and version of the engine, where it was launched.")
    model: str = Field(description="The model.")
    workload: str = Field(description="The traffic in a line.")
    seed: int = Field(description="Of lengths and arrivals.")
    confidence: float = Field(description="Two-sided confidence of the intervals.")
    metrics: list[MetricView] = Field([], description="Every metric; empty in a sweep.")
    verdict: str | None = Field(None, description="feasible, infeasible or undecided; null without limits.")
    limits: list[LimitView] = Field([], description="One per limit, and that on failures.")
    stopped_by: str | None = Field(None, description="Why the window closed, such as `decided` or `budget`.")
    bound: BoundView | None = Field(None, description="What bound the run.")
    curve: SaturationCurve | None = Field(None, description="Of a sweep.")
    capacity: CapacityView | None = Field(None, description="Of a search for the capacity.")
    notes: list[str] = Field(description="Remarks for a person.")
    folder: str | None = Field(description="Where engine log and request samples lie.")


def print_measure(console: Console, view: MeasureView) -> None:
    """Prints all of it."""
    _print_subject(console, view)
    if view.curve is not None:
        print_curve(console, view.curve)
    if view.capacity is not None:
        print_capacity(console, view.capacity)
    if view.metrics:
        _print_metrics(console, view)
    if view.limits:
        _print_limits(console, view)
    if view.bound is not None:
        _print_bound(console, view.bound)
    if view.notes:
        heading(console, "notes")
        for note in view.notes:
            console.print(Text(f"  {hide_secrets(note)}"))
    if view.folder is not None:
        heading(console, "files")
        copyable(console, f"  {view.folder}")


def _print_subject(console: Console, view: MeasureView) -> None:
    console.print(Text("measured", style="bold"))
    copyable(console, f"  {hide_secrets(view.subject)}")
    rows = [("model", view.model), ("workload", view.workload)]
    labelled(console, [*([("engine", view.engine)] if view.engine else []), *rows])
    for shown, warning in ((view.simulated, SIMULATED), (view.mode == "offline", OFFLINE)):
        if shown:
            console.print(Text(warning, style="bold yellow"))
    if not view.complete:
        console.print(Text(BROKEN_OFF, style="bold red"))


def _print_bound(console: Console, bound: BoundView) -> None:
    heading(console, "bound by")
    console.print(Text(f"  {bound.kind.replace('_', ' ')}: {bound.detail}"))
    for line in bound.evidence:
        console.print(Text(f"  {line}"))


def _print_metrics(console: Console, view: MeasureView) -> None:
    heading(console, "metrics")
    named = console.width >= _WIDE_COLUMNS
    interval = f"{100 * view.confidence:.0f} % interval"
    table = plain_table("metric", "value", interval, *(["name in JSON"] if named else []))
    table.columns[-1].justify = "left" if named else "right"
    for metric in view.metrics:
        if metric.value is not None:
            cells = [label_of(metric.name, view.mode), table_value(metric.name, metric.value), _interval(metric)]
            table.add_row(*cells, *([metric.name] if named else []))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    missing = [metric.name for metric in view.metrics if metric.value is None]
    if missing:
        console.print(Padding(Text(f"without a figure: {', '.join(missing)}"), (0, 0, 0, 2), expand=False))


def label_of(name: str, mode: str) -> str:
    """A metric's label; what a batch yields is never called by the name of an online figure."""
    if mode != "offline":
        return metric_label(name)
    if name == "window_s":
        return "time of the batch"
    return f"batch {metric_label(name)}" if name.endswith("_per_s") else metric_label(name)


def _interval(metric: MetricView) -> str:
    if not metric.has_interval:
        return MISSING
    low, high = (_UNBOUNDED if end is None else metric_value(metric.name, end) for end in (metric.low, metric.high))
    return f"{low} to {high}"


def _print_limits(console: Console, view: MeasureView) -> None:
    heading(console, f"limits: {view.verdict}")
    table = plain_table("limit", "at most", "observed", f"{100 * view.confidence:.0f} % interval", "judged", "verdict")
    for limit in view.limits:
        low, high = (_UNBOUNDED if end is None else metric_value(limit.name, end) for end in (limit.low, limit.high))
        table.add_row(
            metric_label(limit.name),
            metric_value(limit.name, limit.limit),
            _UNBOUNDED if limit.observed is None else metric_value(limit.name, limit.observed),
            f"{low} to {high}",
            _judged(limit),
            limit.verdict,
        )
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    if view.stopped_by is not None:
        console.print(Text(f"  the window closed: {view.stopped_by}"))


def _judged(limit: LimitView) -> str:
    if limit.requests is None:
        return MISSING
    worth = limit.effective_requests
    shown = number(float(limit.requests))
    return shown if worth is None or worth >= limit.requests else f"{shown}, worth {number(float(round(worth)))}"
