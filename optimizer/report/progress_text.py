"""The lines that progress is told in, on a terminal and in a pipe alike."""

from __future__ import annotations

from collections.abc import Mapping

from optimizer.core.failure import Failure
from optimizer.core.record import TrialRecord
from optimizer.report.changes import trial_changes
from optimizer.report.progress_state import CurrentTrial, LoadProgress, StudyProgress
from optimizer.report.wording import (
    duration,
    failure_text,
    limit_text,
    metric_value,
    number,
    stage_name,
    trial_seconds,
    value_text,
)


def opened(progress: StudyProgress) -> str:
    """The study, and what is there of it already."""
    name = progress.study.name
    done = progress.total_trials - progress.trials_left
    if not progress.trials:
        return f"study {name}: {progress.total_trials} trials to run"
    return f"study {name} goes on: {done} of {progress.total_trials} trials are done"


def heading(current: CurrentTrial, progress: StudyProgress) -> str:
    """Which trial runs."""
    again = f", attempt {current.attempt}" if current.attempt > 1 else ""
    trial = current.trial
    return f"trial #{trial.number} ({trial.role}), {trial.number + 1} of {progress.total_trials}{again}"


def started(progress: StudyProgress) -> str:
    """A trial began, with what it changes."""
    if progress.current is None:
        return ""
    changes = trial_changes(progress.current.trial, progress.baseline)
    return f"{heading(progress.current, progress)}: {changes}"


def stage(current: CurrentTrial) -> str:
    """The stage that was entered."""
    return f"trial #{current.trial.number}: {stage_name(current.stage)}" if current.stage else ""


def load(progress: LoadProgress) -> str:
    """How far the measuring window is."""
    return (
        f"{number(progress.elapsed_s)} of {duration(progress.window_s)} measured, "
        f"{progress.done_requests} requests done"
    )


def attempt_failed(trial_number: int, trouble: Failure, *, will_retry: bool) -> str:
    """An attempt failed, and what follows."""
    follows = "; trying it again" if will_retry else ""
    return f"trial #{trial_number}: {failure_text(trouble)}{follows}"


def finished(trial: TrialRecord, progress: StudyProgress) -> str:
    """What became of a trial: state, value, limits, failure, time."""
    seconds = trial_seconds(trial)
    time = [] if seconds is None else [f"in {duration(seconds)}"]
    return "  ".join([f"#{trial.number}", trial.state.value, *figures(trial, progress), *failure(trial), *time])


def figures(trial: TrialRecord, progress: StudyProgress) -> list[str]:
    """A trial's value against the baseline's, and each limit; nothing without a measurement."""
    if trial.score is None:
        return []
    baseline = progress.baseline
    reference = None if baseline is None or baseline.number == trial.number else baseline.value
    limits = [limit_text(constraint) for constraint in trial.score.constraints]
    return [value_text(trial.score, reference), *(limits or _tail(trial.metrics))]


def failure(trial: TrialRecord) -> list[str]:
    """Why a trial has no measurement; nothing when it has one."""
    return [] if trial.failure is None else [failure_text(trial.failure)]


def best(progress: StudyProgress) -> str:
    """The best trial so far."""
    if progress.best is None or progress.best.score is None:
        return "best so far: none feasible yet"
    return "  ".join([f"best so far: #{progress.best.number}", *figures(progress.best, progress)])


def left(progress: StudyProgress, now_s: float) -> str:
    """Trials and time that remain."""
    trials = progress.trials_left
    time_left_s = progress.time_left_s(now_s)
    estimate = "" if time_left_s is None else f", about {duration(time_left_s)}"
    return f"{trials} trial{'' if trials == 1 else 's'} left{estimate}"


def _tail(metrics: Mapping[str, float | None]) -> list[str]:
    value = metrics.get("p99_e2e_ms")
    return [] if value is None else [f"P99 E2E {metric_value('p99_e2e_ms', value)}"]
