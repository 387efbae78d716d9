"""One trial in full, for `show`."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from optimizer.core.failure import Failure
from optimizer.core.record import AttemptRecord, TrialRecord
from optimizer.core.scoring import Score
from optimizer.engine.vllm.argv import flag_words
from optimizer.report.changes import trial_changes
from optimizer.report.export import exported_flags
from optimizer.report.layout import copyable, heading, plain_table
from optimizer.report.secrets import HIDDEN, hide_argument_secrets, hide_secrets, is_secret_name
from optimizer.report.wording import (
    confidence_text,
    duration,
    failure_text,
    interval_text,
    metric_label,
    metric_value,
    moment,
    requests_text,
    stage_name,
    table_value,
    value_interval_text,
    value_text,
)


def print_trial(console: Console, trial: TrialRecord, baseline: TrialRecord | None) -> None:
    """Prints setting, score, metrics, failure and every attempt of a trial."""
    console.print(Text(f"trial #{trial.number} of study {trial.study}: {trial.role}, {trial.state}", style="bold"))
    for note in trial.notes:
        console.print(Text(f"note: {hide_secrets(note)}"))
    _print_setting(console, trial, baseline)
    if trial.score is not None:
        reference = None if baseline is None or baseline.number == trial.number else baseline.value
        _print_score(console, trial.score, reference)
    if trial.metrics:
        _print_metrics(console, trial)
    if trial.failure is not None:
        _print_failure(console, trial.failure)
    for attempt in trial.attempts:
        _print_attempt(console, attempt)


def _print_setting(console: Console, trial: TrialRecord, baseline: TrialRecord | None) -> None:
    heading(console, "setting")
    if trial.params:
        copyable(console, "  searched: " + " ".join(f"{name}={value}" for name, value in trial.params.items()))
    if trial.config is None:
        console.print(Text("  it was never launched"))
        return
    copyable(console, f"  engine: {trial.config.engine}, model: {trial.config.model}")
    if baseline is not None:
        copyable(console, f"  vs baseline: {trial_changes(trial, baseline)}")
    for name, value in exported_flags(trial.config).items():
        copyable(console, f"  {shlex.join(flag_words({name: value}))}")
    for name, value in trial.config.env.items():
        copyable(console, f"  {name}={HIDDEN if is_secret_name(name) else value}")


def _print_score(console: Console, score: Score, baseline: float | None) -> None:
    heading(console, "score")
    direction = "more is better" if score.maximise else "less is better"
    against = "" if baseline is None else ", against the baseline"
    console.print(Text(f"  {score.verdict}: {value_text(score, baseline)}{against}; {direction}"))
    interval = value_interval_text(score)
    if interval:
        console.print(Text(f"  {interval}"))
    if not score.constraints:
        return
    sure = confidence_text(score.constraints[0].confidence)
    table = plain_table("limit", "at most", "observed", f"{sure} interval", "of requests", "verdict")
    for constraint in score.constraints:
        table.add_row(
            metric_label(constraint.name),
            metric_value(constraint.name, constraint.limit),
            metric_value(constraint.name, constraint.observed),
            interval_text(constraint),
            requests_text(constraint),
            constraint.verdict.value,
        )
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _print_metrics(console: Console, trial: TrialRecord) -> None:
    heading(console, "metrics")
    table = plain_table("metric", "value", "name in JSON")
    table.columns[2].justify = "left"
    for name, value in trial.metrics.items():
        table.add_row(metric_label(name), table_value(name, value), name)
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _print_failure(console: Console, failure: Failure) -> None:
    heading(console, "failure")
    blame = "the setting" if failure.blame == "config" else "the host"
    console.print(Text(f"  {hide_secrets(failure_text(failure))}"))
    ended = "" if failure.exit_code is None else f"; the exit code was {failure.exit_code}"
    console.print(Text(f"  to blame: {blame}{ended}"))
    for line in failure.evidence:
        copyable(console, f"  | {hide_secrets(line)}")


def _print_attempt(console: Console, attempt: AttemptRecord) -> None:
    heading(console, f"attempt {attempt.number}")
    ended = "an end that is not recorded" if attempt.ended_at is None else moment(attempt.ended_at)
    owner = f"process {attempt.owner.pid} on {attempt.owner.host}"
    console.print(Text(f"  {moment(attempt.started_at)} to {ended}, {owner}"))
    for timing in attempt.stages:
        lasted = "not ended" if timing.duration_s is None else duration(timing.duration_s)
        console.print(Text(f"  {stage_name(timing.stage)}: {lasted}"))
    if attempt.failure is not None:
        console.print(Text(f"  failed: {hide_secrets(failure_text(attempt.failure))}"))
    copyable(console, f"  folder: {attempt.folder}")
    if attempt.argv:
        copyable(console, f"  argv: {shlex.join(hide_argument_secrets(attempt.argv))}")
