"""What `check` says of a space or a command."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optimizer.report.layout import copyable, heading, plain_table
from optimizer.report.secrets import hide_secrets
from optimizer.report.view import View
from optimizer.report.wording import duration

_STYLES = {"error": "bold red", "warning": "bold yellow", "advice": "bold cyan"}
_GIB = 2**30


class FlagProblemView(View):
    """One flag, value or variable that the engine would not take."""

    where: str = Field(description="File and key, option, or `command`.")
    flag: str = Field(description="As it is written there.")
    message: str = Field(description="What is wrong.")
    instead: str | None = Field(description="What to write in its place; null when that is not known.")


class FindingView(View):
    """One anti-pattern."""

    rule: str = Field(description="Name of the rule.")
    severity: Literal["error", "warning", "advice"] = Field(description="How bad it is.")
    message: str = Field(description="What is wrong, with the values.")
    remedy: str = Field(description="What to do about it.")
    where: str = Field(description="What to change.")


class SpanView(View):
    """A prediction: both ends of what is likely, and the middle."""

    low: float = Field(description="Low end.")
    mid: float = Field(description="Most likely.")
    high: float = Field(description="High end.")


class MemoryView(View):
    """The memory of one launch, on one device."""

    setting: str = Field(description="Which launch: baseline, defaults or command.")
    required: bool = Field(description="Whether it has to start; vLLM's own defaults need not.")
    weights_bytes: float = Field(description="Weights.")
    taken_bytes: SpanView = Field(description="All but the KV cache, weights included.")
    kv_pool_bytes: SpanView = Field(description="KV cache.")
    kv_pool_tokens: SpanView = Field(description="The same in tokens.")
    max_model_len: int | None = Field(description="Longest request; null when the engine fits it to the pool.")
    concurrency: SpanView = Field(description="Requests of that length that the pool holds at once.")
    misfit: str | None = Field(description="Why it cannot start; null when it may.")


class TimeView(View):
    """How long the study will take, in seconds."""

    trials: int = Field(description="Trials of the study.")
    trial_s: SpanView = Field(description="One trial.")
    total_s: SpanView = Field(description="All of them.")
    dominant: str = Field(description="The part that takes most of it.")


class CheckView(View):
    """`check --json`."""

    ok: bool = Field(description="Whether nothing is wrong; warnings and advice do not count.")
    subject: str = Field(description="What was looked at.")
    engine: str = Field(description="What it was held against.")
    problems: list[FlagProblemView] = Field(description="Every flag that is wrong.")
    findings: list[FindingView] = Field(description="Anti-patterns, errors first.")
    memory: list[MemoryView] = Field(description="Predicted memory; empty when it cannot be predicted.")
    time: TimeView | None = Field(description="Predicted time of the study; null for a command.")
    notes: list[str] = Field(description="What could not be looked at, and why.")

    @property
    def verdict(self) -> str:
        """How many things are wrong."""
        wrong = len(self.problems) + sum(finding.severity == "error" for finding in self.findings)
        wrong += sum(memory.required and memory.misfit is not None for memory in self.memory)
        return f"{wrong} thing is wrong" if wrong == 1 else f"{wrong} things are wrong"


def print_check(console: Console, view: CheckView) -> None:
    """Prints wrong flags first, then findings, memory and time."""
    console.print(Text(f"{view.subject}, held against {view.engine}", style="bold"))
    if view.problems:
        heading(console, "flags")
        for problem in view.problems:
            _entry(console, "error", f"{problem.where}: {problem.message}", "instead", problem.instead)
    else:
        console.print(Text("flags: none is wrong"))
    if view.findings:
        heading(console, "settings")
        for finding in view.findings:
            _entry(
                console, finding.severity, f"{finding.message} ({finding.rule}, {finding.where})", "do", finding.remedy
            )
    if view.memory:
        heading(console, "memory of one device, predicted")
        console.print(Padding(_memory_table(view.memory), (0, 0, 0, 2), expand=False))
        for memory in view.memory:
            if memory.misfit is not None:
                severity = "error" if memory.required else "warning"
                _entry(console, severity, f"{memory.setting} cannot start: {memory.misfit}", "", None)
    if view.time is not None:
        heading(console, "time")
        copyable(console, f"  {time_text(view.time)}")
    for note in view.notes:
        console.print(Text(f"note: {hide_secrets(note)}"))


def time_text(time: TimeView) -> str:
    """The study's time in a line."""
    trial = f"{duration(time.trial_s.low)} to {duration(time.trial_s.high)}"
    total = f"{duration(time.total_s.low)} to {duration(time.total_s.high)}"
    return f"{total} for {time.trials} trials of {trial}; the largest part: {time.dominant}"


def _entry(console: Console, severity: str, text: str, label: str, remedy: str | None) -> None:
    line = Text.assemble("  ", (f"{severity}: ", _STYLES[severity]), hide_secrets(text))
    console.print(line, soft_wrap=True)
    if remedy is not None:
        copyable(console, f"    {label}: {hide_secrets(remedy)}")


def _memory_table(rows: list[MemoryView]) -> Table:
    table = plain_table("setting", "weights", "all but KV", "KV cache", "in tokens", "longest request", "such at once")
    for row in rows:
        table.add_row(
            row.setting,
            f"{row.weights_bytes / _GIB:.2f} GiB",
            _gib(row.taken_bytes),
            _gib(row.kv_pool_bytes),
            f"{row.kv_pool_tokens.low:,.0f} to {row.kv_pool_tokens.high:,.0f}",
            "fitted" if row.max_model_len is None else f"{row.max_model_len:,}",
            f"{row.concurrency.low:.1f} to {row.concurrency.high:.1f}",
        )
    return table


def _gib(span: SpanView) -> str:
    return f"{max(span.low, 0) / _GIB:.2f} to {max(span.high, 0) / _GIB:.2f} GiB"
