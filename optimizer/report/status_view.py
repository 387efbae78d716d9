"""The tables of `status`: the studies of a history, and the trials of one study."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from optimizer.core.confirmation import study_trials
from optimizer.core.recommendation import Recommendation
from optimizer.core.record import StudyRecord, TrialRecord, best_trial
from optimizer.report.changes import baseline_of, trial_changes
from optimizer.report.closing import states_text
from optimizer.report.confirm_view import confirmations_text
from optimizer.report.layout import plain_table
from optimizer.report.progress import STATE_STYLES
from optimizer.report.wording import (
    MISSING,
    change,
    duration,
    failure_text,
    metric_label,
    metric_value,
    table_value,
    trial_seconds,
)

_WIDE_COLUMNS = 100
"""From this width on there is room for the changed flags beside the figures."""


def print_studies(console: Console, studies: list[tuple[StudyRecord, list[TrialRecord]]]) -> None:
    """Prints each study with its number of trials and its best."""
    if not studies:
        console.print(Text("no studies yet: `run --space tiny-cpu` makes one"))
        return
    table = plain_table("study", "trials", "best", "value", "vs baseline")
    for study, trials in studies:
        best = best_trial(trials, maximise=study.maximise)
        table.add_row(
            study.name,
            str(len(study_trials(trials))),
            MISSING if best is None else f"#{best.number}",
            MISSING if best is None else metric_value(study.objective, best.value),
            _against(best, baseline_of(trials)),
        )
    console.print(table)


def print_study(
    console: Console, study: StudyRecord, trials: list[TrialRecord], recommendation: Recommendation | None = None
) -> None:
    """Prints the trials of a study, its best one marked, and which of them to use."""
    console.print(Text(f"study {study.name}: {states_text(study_trials(trials))}", style="bold"))
    if trials:
        console.print(_trial_table(study, trials, wide=console.width >= _WIDE_COLUMNS))
    best = best_trial(trials, maximise=study.maximise)
    console.print(Text("no trial is feasible yet" if best is None else f"* best: #{best.number}"))
    if recommendation is not None:
        console.print(Text(f"recommended: #{recommendation.number}: {recommendation.reason}"))
    for line in confirmations_text(study, trials):
        console.print(Text(line))


def _trial_table(study: StudyRecord, trials: list[TrialRecord], *, wide: bool) -> Table:
    baseline = baseline_of(trials)
    best = best_trial(trials, maximise=study.maximise)
    limited = _limited_metrics(trials)
    titles = ["#", "role", "state", metric_label(study.objective), "vs base", *map(metric_label, limited)]
    table = plain_table(*titles, *(["time", "changed flags, or failure"] if wide else []))
    table.columns[1].justify = table.columns[2].justify = "left"
    table.columns[2].no_wrap = True
    if wide:
        table.columns[-1].justify = "left"
    for trial in trials:
        mark = "*" if trial is best else ""
        cells = [
            f"{trial.number}{mark}",
            trial.role.value,
            Text(trial.state.value, style=STATE_STYLES[trial.state]),
            table_value(study.objective, trial.value),
            _against(trial, baseline),
            *(metric_value(name, trial.metrics.get(name)) for name in limited),
        ]
        table.add_row(*cells, *([duration(trial_seconds(trial)), _remark(trial, baseline)] if wide else []))
    return table


def _limited_metrics(trials: list[TrialRecord]) -> list[str]:
    names = (c.name for trial in trials if trial.score is not None for c in trial.score.constraints)
    return list(dict.fromkeys(names)) or ["p99_e2e_ms"]


def _against(trial: TrialRecord | None, baseline: TrialRecord | None) -> str:
    if trial is None or baseline is None or trial.number == baseline.number:
        return MISSING
    return change(trial.value, baseline.value)


def _remark(trial: TrialRecord, baseline: TrialRecord | None) -> str:
    changes = trial_changes(trial, baseline)
    return changes if trial.failure is None else f"{failure_text(trial.failure)} [{changes}]"
