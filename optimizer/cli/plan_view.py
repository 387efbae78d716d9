"""What `run --dry-run` prints."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.text import Text

from optimizer.app.plan import StudyPlan
from optimizer.config.study_time import Span, StudyTime
from optimizer.report.layout import copyable, heading, labelled, plain_table
from optimizer.report.secrets import hide_argument_secrets, hide_secrets
from optimizer.report.wording import duration


def print_plan(console: Console, plan: StudyPlan) -> None:
    """Prints the space, what is measured, the first proposals with their commands, and the time needed."""
    console.print(Text(f"study {plan.study} over space {plan.space_name}: nothing is started", style="bold"))
    rows = [("model", plan.model), ("workload", plan.workload), ("objective", plan.objective)]
    rows += [("limit", slo) for slo in plan.slos] or [("limit", "none")]
    labelled(console, [*rows, ("sampler", plan.sampler), ("trials", str(plan.trials)), ("time", time_text(plan.time))])
    heading(console, "parameters")
    table = plain_table("flag", "range")
    table.columns[1].justify = "left"
    for name, domain in plan.parameters:
        table.add_row(name, domain)
    console.print(table)
    if plan.rules:
        heading(console, "rules")
        for rule in plan.rules:
            copyable(console, f"  {rule}")
    for proposal in plan.proposals:
        heading(console, f"trial #{proposal.number} ({proposal.role})")
        setting = " ".join(f"{name}={value}" for name, value in proposal.params.items())
        for note in proposal.notes:
            console.print(Text(f"  {hide_secrets(note)}"))
        copyable(console, f"  {setting or 'no searched flag'}")
        copyable(console, f"  {shlex.join(hide_argument_secrets(proposal.argv))}")
    for note in plan.notes:
        console.print(Text(f"note: {hide_secrets(note)}"))


def time_text(time: StudyTime) -> str:
    """What the rest of a study takes, where most of it goes, and what the figures rest on."""
    if not time.trials:
        return "none: every trial was run"
    basis = f"timed on {time.timed} of its trials" if time.timed else "before a trial was timed"
    amount = f"{_span(time.total)} for {time.trials} trials of {_span(time.trial)}"
    return f"{amount}, the largest part: {time.dominant.name}; {basis}"


def _span(span: Span) -> str:
    return f"{duration(span.low_s)} to {duration(span.high_s)}"
