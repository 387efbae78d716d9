"""What a confirmation came to, in words, as a table and as JSON."""

from __future__ import annotations

from pydantic import Field
from rich.console import Console
from rich.text import Text

from optimizer.core.confirmation import Arm, arm_of, confirmation_trials, confirmed_trial, run_of
from optimizer.core.record import StudyRecord, TrialRecord
from optimizer.core.trial import TrialRole
from optimizer.objectives.confirmation import Confirmation, LimitCount, Reason, judge_confirmation
from optimizer.report.json_view import finite
from optimizer.report.layout import heading, plain_table
from optimizer.report.runs import runs_text
from optimizer.report.simulation import SIMULATED, is_simulated
from optimizer.report.view import View
from optimizer.report.wording import MISSING, change, duration, failure_text, metric_label, table_value, trial_seconds

OUTCOME_STYLES = {"confirmed": "bold green", "not confirmed": "bold red", "undecided": "bold yellow"}


class RatioView(View):
    """The ratio of the winner's figure to the baseline's."""

    value: float = Field(description="Ratio of the geometric means.")
    low: float | None = Field(description="Lower end of its interval; null when unbounded.")
    high: float | None = Field(description="Upper end; null when unbounded.")
    level: float = Field(description="Two-sided confidence of the interval.")


class LimitCountView(View):
    """One limit over the runs of one setting."""

    held: int = Field(description="Runs in which it held.")
    broken: int = Field(description="Runs in which it did not.")
    open: int = Field(description="Runs that did not decide it.")


class ConfirmationView(View):
    """`confirm --json`."""

    study: str = Field(description="Name of the study.")
    winner: int = Field(description="Number of the trial that is confirmed.")
    outcome: str | None = Field(
        description="confirmed, not confirmed or undecided; null when the winner is the baseline itself."
    )
    reason: str | None = Field(description="What it rests on, such as `wide`: 1 lies within the interval.")
    text: str = Field(description="The same in a sentence.")
    metric: str | None = Field(description="The objective's metric.")
    ratio: RatioView | None = Field(description="Null as long as there is none.")
    runs: dict[str, int] = Field(description="Measured runs of `winner` and of `baseline`.")
    limits: dict[str, dict[str, LimitCountView]] = Field(description="For each of the two, limit name to counts.")
    trials: list[int] = Field(description="Numbers of the trials, for `show`.")


def confirmation_view(
    study: StudyRecord, trials: list[TrialRecord], winner: TrialRecord, confirmation: Confirmation | None
) -> ConfirmationView:
    """The confirmation for scripts."""
    if confirmation is None:
        return ConfirmationView(
            study=study.name, winner=winner.number, outcome=None, reason=None, text=NOTHING_TO_CONFIRM, metric=None,
            ratio=None, runs={}, limits={}, trials=[],
        )  # fmt: skip
    ratio = confirmation.ratio
    shown = None
    if ratio is not None:
        shown = RatioView(value=ratio.value, low=finite(ratio.low), high=finite(ratio.high), level=ratio.level)
    return ConfirmationView(
        study=study.name,
        winner=confirmation.winner,
        outcome=confirmation.outcome.value,
        reason=confirmation.reason.value,
        text=confirmation_text(confirmation),
        metric=confirmation.metric,
        ratio=shown,
        runs={arm.value: count for arm, count in confirmation.runs.items()},
        limits={
            arm.value: {
                name: LimitCountView(held=count.held, broken=count.broken, open=count.open)
                for name, count in counts.items()
            }
            for arm, counts in confirmation.limits.items()
        },
        trials=[trial.number for trial in confirmation_trials(trials, confirmation.winner)],
    )


NOTHING_TO_CONFIRM = "the best trial is the baseline itself: there is nothing to confirm, and nothing was run"


def confirmation_text(confirmation: Confirmation) -> str:
    """The outcome in one line, such as `confirmed: +38 % (95 % interval +31 % to +45 %)`."""
    return f"{confirmation.outcome}: {_why(confirmation)}"


def _why(confirmation: Confirmation) -> str:
    gain = _gain(confirmation)
    match confirmation.reason:
        case Reason.BETTER:
            return gain
        case Reason.NOT_BETTER:
            return f"{gain}: no better than the baseline"
        case Reason.WIDE:
            return f"{gain}: no difference lies within, and more --repeats narrow it"
        case Reason.LIMIT_BROKEN:
            return f"{_limits_text(confirmation, broken=True)} on held-out traffic; {gain}"
        case Reason.LIMIT_OPEN:
            return f"{_limits_text(confirmation, broken=False)} on held-out traffic; {gain}"
        case Reason.WINNER_FAILED:
            return "the winner failed in a repeat"
        case Reason.BASELINE_FAILED:
            return "the baseline failed in a repeat, so there is nothing to compare with"
        case Reason.UNFINISHED:
            counts = ", ".join(f"{confirmation.runs[arm]} of the {arm}" for arm in Arm)
            return f"too few runs are measured ({counts}); the same command goes on"


def _gain(confirmation: Confirmation) -> str:
    ratio = confirmation.ratio
    if ratio is None:
        return "no ratio"
    interval = "unbounded"
    if ratio.low is not None and ratio.high is not None:
        interval = f"{change(ratio.low, 1.0)} to {change(ratio.high, 1.0)}"
    return f"{change(ratio.value, 1.0)} ({100 * ratio.level:.0f} % interval {interval})"


def _limits_text(confirmation: Confirmation, *, broken: bool) -> str:
    told = []
    for name, count in confirmation.limits[Arm.WINNER].items():
        if broken and 2 * count.broken > count.runs:
            told.append(f"{metric_label(name)} was over its limit in {count.broken} of {count.runs} runs")
        if not broken and count.held < count.runs:
            told.append(f"{metric_label(name)} was within its limit in {count.held} of {count.runs} runs only")
    return ", ".join(told)


def print_confirmation(
    console: Console, study: StudyRecord, trials: list[TrialRecord], winner: TrialRecord, found: Confirmation | None
) -> None:
    """Prints every run, the limits, and the outcome."""
    heading(console, f"study {study.name}: #{winner.number} against the baseline on held-out traffic")
    if is_simulated(study):
        console.print(Text(SIMULATED, style="bold yellow"))
    if found is None:
        console.print(Text(NOTHING_TO_CONFIRM.capitalize() + "."))
        return
    runs = confirmation_trials(trials, found.winner)
    names = list(dict.fromkeys(c.name for trial in runs if trial.score is not None for c in trial.score.constraints))
    table = plain_table("run", "trial", "setting", "state", metric_label(study.objective), *map(metric_label, names))
    table.add_column("time", justify="right")
    table.columns[2].justify = table.columns[3].justify = "left"
    table.columns[1].no_wrap = table.columns[2].no_wrap = True
    for trial in runs:
        constraints = {} if trial.score is None else {c.name: c.observed for c in trial.score.constraints}
        arm = arm_of(run_of(trial.number))
        table.add_row(
            str(run_of(trial.number) + 1),
            f"#{trial.number}",
            f"winner #{found.winner}" if arm is Arm.WINNER else "baseline #0",
            trial.state.value,
            table_value(study.objective, trial.value),
            *(table_value(name, constraints.get(name)) for name in names),
            duration(trial_seconds(trial)),
        )
    console.print(table)
    for trial in runs:
        if trial.failure is not None:
            console.print(Text(f"#{trial.number}: {failure_text(trial.failure)}"))
    for arm in Arm:
        for name, count in found.limits[arm].items():
            console.print(Text(f"{arm}: {metric_label(name)} {_count_text(count)}"))
    console.print(Text(confirmation_text(found), style=OUTCOME_STYLES[found.outcome.value]))


def _count_text(count: LimitCount) -> str:
    undecided = f", undecided in {count.open}" if count.open else ""
    broken = f", over it in {count.broken}" if count.broken else ""
    return f"within its limit in {count.held} of {count.runs} runs{broken}{undecided}" if count.runs else MISSING


def confirmation_note(study: StudyRecord, trials: list[TrialRecord], trial: TrialRecord) -> str | None:
    """Whether a trial's gain over the baseline was repeated; None for the baseline itself."""
    if trial.role is TrialRole.BASELINE:
        return None
    found = judge_confirmation(trials, trial.number, maximise=study.maximise)
    if found is None:
        counted = runs_text(trials, trial)
        return f"trial #{trial.number} is not confirmed on held-out traffic ({counted}): `confirm` does that"
    return f"trial #{trial.number} on held-out traffic: {confirmation_text(found)}"


def confirmations_text(study: StudyRecord, trials: list[TrialRecord]) -> list[str]:
    """Every confirmation of a study in a line each, such as `#7 confirmed: +38 % (...)`."""
    winners = sorted({confirmed_trial(trial.number) for trial in trials if trial.role is TrialRole.CONFIRM})
    found = [judge_confirmation(trials, winner, maximise=study.maximise) for winner in winners]
    return [f"#{one.winner} {confirmation_text(one)}" for one in found if one is not None]
