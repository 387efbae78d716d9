"""`show --json`: one trial in full."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field, JsonValue

from optimizer.core.failure import Failure
from optimizer.core.record import AttemptRecord, TrialRecord
from optimizer.core.scoring import Constraint, Score
from optimizer.metrics import bound_in
from optimizer.report.export import exported_env, exported_flags
from optimizer.report.json_view import FailureView, TrialView, finite, trial_view
from optimizer.report.limit_view import LimitView, limit_view
from optimizer.report.secrets import hide_argument_secrets, hide_secrets
from optimizer.report.view import View


class ConfigView(View):
    """What was launched."""

    engine: str = Field(description="Name of the engine.")
    model: str = Field(description="Path or hub id of the model.")
    flags: dict[str, JsonValue] = Field(description="Flag name, without dashes, to value.")
    env: dict[str, str] = Field(description="Variables set on top of the inherited ones.")
    fingerprint: str = Field(description="Equal for equal settings.")


class LimitDetail(LimitView):
    """One limit with all that is known of it."""

    confidence: float | None = Field(description="Two-sided confidence of the interval; null in old records (0.95).")
    violation: float | None = Field(description="log(observed / limit).")


class ScoreView(View):
    """What the measurement is worth."""

    metric: str = Field(description="The objective's metric.")
    maximise: bool = Field(description="Whether more is better.")
    low: float | None = Field(description="Lower end of the value's interval; null when unbounded or without one.")
    high: float | None = Field(description="Upper end of the value's interval.")
    confidence: float | None = Field(description="Two-sided confidence of that interval; null without one.")
    limits: list[LimitDetail] = Field(description="One per limit.")


class FailureDetail(FailureView):
    """A failure with all that is known of it."""

    detail: str = Field(description="One sentence.")
    exit_code: int | None = Field(description="Exit status of the engine or the evaluator, negative for a signal.")
    violation: float | None = Field(description="How far the setting is from working.")
    retryable: bool = Field(description="Whether another attempt may end otherwise.")
    phase: str | None = Field(description="For out_of_memory, what needed it, such as `profiling`; else null.")
    facts: dict[str, float | None] = Field(description="Numbers the evidence states; names end in their unit.")


class StageView(View):
    """One stage of an attempt."""

    stage: str = Field(description="launching, warming_up, measuring or stopping.")
    started_at: datetime = Field(description="UTC.")
    duration_s: float | None = Field(description="Seconds; null while it lasts.")


class AttemptView(View):
    """One try at the trial."""

    number: int = Field(description="1 is the first.")
    host: str = Field(description="Where it ran.")
    pid: int = Field(description="The optimizer's process.")
    started_at: datetime = Field(description="UTC.")
    ended_at: datetime | None = Field(description="UTC; null while it runs or when its owner died.")
    folder: str = Field(description="Where engine log and request samples lie.")
    argv: list[str] = Field(description="How the engine was started, without API key.")
    stages: list[StageView] = Field(description="In the order they were entered.")
    failure: FailureDetail | None = Field(description="Why it failed.")


class TrialDetail(TrialView):
    """`show TRIAL --json`."""

    study: str = Field(description="Name of the study.")
    config: ConfigView | None = Field(description="Null when it was never launched.")
    score: ScoreView | None = Field(description="Null without a measurement.")
    failure: FailureDetail | None = Field(description="Null when it did not fail.")
    attempts: list[AttemptView] = Field(description="Every try, in order.")
    bound_by: str | None = Field(description="What bound the run, such as `api_server`; null without a measurement.")
    notes: list[str] = Field(description="Remarks for a person.")


def trial_detail(trial: TrialRecord) -> TrialDetail:
    """All that is known of a trial, without secrets and without numbers that JSON cannot hold."""
    return TrialDetail(
        **trial_view(trial).model_dump(exclude={"failure"}),
        study=trial.study,
        config=_config_view(trial),
        score=None if trial.score is None else _score_view(trial.score),
        failure=None if trial.failure is None else _failure_detail(trial.failure),
        attempts=[_attempt_view(attempt) for attempt in trial.attempts],
        bound_by=_bound_by(trial),
        notes=[hide_secrets(note) for note in trial.notes],
    )


def _bound_by(trial: TrialRecord) -> str | None:
    kind = bound_in(trial.notes)
    return None if kind is None else kind.value


def _config_view(trial: TrialRecord) -> ConfigView | None:
    config = trial.config
    if config is None:
        return None
    return ConfigView(
        engine=config.engine,
        model=config.model,
        flags=dict(exported_flags(config)),
        env=exported_env(config),
        fingerprint=config.fingerprint,
    )


def _score_view(score: Score) -> ScoreView:
    return ScoreView(
        metric=score.metric,
        maximise=score.maximise,
        low=finite(score.low),
        high=finite(score.high),
        confidence=finite(score.confidence),
        limits=[_limit_detail(constraint) for constraint in score.constraints],
    )


def _limit_detail(constraint: Constraint) -> LimitDetail:
    return LimitDetail(
        **limit_view(constraint).model_dump(),
        confidence=finite(constraint.confidence),
        violation=finite(constraint.violation),
    )


def _failure_detail(failure: Failure) -> FailureDetail:
    return FailureDetail(
        kind=failure.kind.value,
        stage=failure.stage.value,
        blame=failure.blame.value,
        evidence=[hide_secrets(line) for line in failure.evidence],
        detail=hide_secrets(failure.detail),
        exit_code=failure.exit_code,
        violation=finite(failure.violation),
        retryable=failure.retryable,
        phase=None if failure.phase is None else failure.phase.value,
        facts={name: finite(value) for name, value in failure.facts.items()},
    )


def _attempt_view(attempt: AttemptRecord) -> AttemptView:
    return AttemptView(
        number=attempt.number,
        host=attempt.owner.host,
        pid=attempt.owner.pid,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        folder=attempt.folder,
        argv=hide_argument_secrets(attempt.argv),
        stages=[
            StageView(stage=timing.stage.value, started_at=timing.started_at, duration_s=finite(timing.duration_s))
            for timing in attempt.stages
        ],
        failure=None if attempt.failure is None else _failure_detail(attempt.failure),
    )
