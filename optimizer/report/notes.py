"""Markdown notes that the dashboard shows beside a trial and a study."""

from __future__ import annotations

import shlex
import textwrap

from optimizer.core.confirmation import study_trials
from optimizer.core.engine_config import EngineConfig
from optimizer.core.record import StudyRecord, TrialRecord, best_trial
from optimizer.core.scoring import Constraint
from optimizer.engine.vllm.argv import flag_words
from optimizer.report.changes import baseline_of, trial_changes
from optimizer.report.closing import states_text
from optimizer.report.export import by_option, exported_flags, launch_flags
from optimizer.report.secrets import hide_secrets
from optimizer.report.simulation import SIMULATED, is_simulated
from optimizer.report.wording import (
    MISSING,
    change,
    confidence_text,
    duration,
    failure_text,
    interval_text,
    limit_text,
    metric_label,
    stage_name,
    table_value,
    value_interval_text,
)

_CODE_COLUMNS = 100
"""The dashboard breaks no line of code: a longer one would make the whole page scroll sideways."""


def note_of(trial: TrialRecord) -> str:
    """A trial as Markdown: what became of it, its limits, flags, times, where its log lies, and all metrics."""
    parts = [f"**{trial.role}, {trial.state}**", *(hide_secrets(note) for note in trial.notes)]
    if trial.failure is not None:
        parts.append(f"Failed: {hide_secrets(failure_text(trial.failure))}")
        parts += _code(_broken([hide_secrets(line) for line in trial.failure.evidence]))
    if trial.score is not None:
        shown = f"{metric_label(trial.score.metric)}: **{table_value(trial.score.metric, trial.score.value)}**"
        interval = value_interval_text(trial.score)
        parts.append(f"{shown} ({interval})" if interval else shown)
        limits = [f"- {limit_text(c)}{_interval(c)}" for c in trial.score.constraints]
        parts += ["\n".join(limits)] if limits else []
    if trial.config is not None:
        flags = exported_flags(trial.config)
        parts += _code([shlex.join(flag_words({name: value})) for name, value in flags.items()])
    if trial.attempts:
        last = trial.attempts[-1]
        stages = ", ".join(f"{stage_name(timing.stage)} {duration(timing.duration_s)}" for timing in last.stages)
        parts.append(f"Attempt {last.number}: {stages or 'no stage entered'}. Log and samples: `{last.folder}`")
    if trial.metrics:
        rows = [f"| {metric_label(name)} | {table_value(name, value)} |" for name, value in trial.metrics.items()]
        parts.append("\n".join(["| metric | value |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _interval(constraint: Constraint) -> str:
    """The interval in brackets; nothing where the value alone decided."""
    shown = interval_text(constraint)
    return "" if shown == MISSING else f" ({confidence_text(constraint.confidence)} interval: {shown})"


def study_note(study: StudyRecord, trials: list[TrialRecord]) -> str:
    """A study as Markdown: how its trials ended, and its best against the baseline with the flags to copy."""
    states = states_text(study_trials(trials))
    parts = [f"**{study.name}**: {states}", *([f"**{SIMULATED}**"] if is_simulated(study) else [])]
    best = best_trial(trials, maximise=study.maximise)
    baseline = baseline_of(trials)
    if best is None:
        parts.append("No trial is feasible yet.")
    else:
        worth = table_value(study.objective, best.value)
        against = ""
        if baseline is not None and baseline.number != best.number and baseline.value is not None:
            against = f", {change(best.value, baseline.value)} vs baseline"
        parts.append(f"Best feasible trial: **#{best.number}**, {metric_label(study.objective)} {worth}{against}")
        parts.append(f"Changes: `{trial_changes(best, baseline)}`")
        parts += [] if best.config is None else _code(_flag_lines(best.config))
    versions = ", ".join(f"{name} {version}" for name, version in study.versions.items())
    return "\n\n".join([*parts, *([f"Measured with {versions}."] if versions else [])])


def _flag_lines(config: EngineConfig) -> list[str]:
    """The flags to launch with, one a line, ready to paste."""
    open_flags = [shlex.join(words) for words in by_option(launch_flags(config))]
    return [f"{flag} \\" for flag in open_flags[:-1]] + open_flags[-1:]


def _broken(lines: list[str]) -> list[str]:
    """The lines, long ones broken."""
    return [
        piece
        for line in lines
        for piece in textwrap.wrap(line, _CODE_COLUMNS, subsequent_indent="    ", break_on_hyphens=False) or [""]
    ]


def _code(lines: list[str]) -> list[str]:
    """A fenced block; its fence is longer than any run of backticks inside, so that no line can end it."""
    if not lines:
        return []
    fence = "```"
    while any(fence in line for line in lines):
        fence += "`"
    return ["\n".join([fence, *lines, fence])]
