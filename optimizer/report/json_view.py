"""The JSON that scripts rely on: its keys change only with a major version."""

from __future__ import annotations

import math

from pydantic import Field, JsonValue

from optimizer.core.confirmation import study_trials
from optimizer.core.engine_config import EngineConfig
from optimizer.core.failure import Failure
from optimizer.core.recommendation import Recommendation
from optimizer.core.record import ParamValue, StudyRecord, TrialRecord, best_trial
from optimizer.objectives.confirmation import judge_confirmation
from optimizer.report.changes import baseline_of
from optimizer.report.export import command_argv, exported_env, exported_flags, improvement
from optimizer.report.nearest import Relaxation, best_relaxation, binding_limit, least_relaxation, nearest_miss
from optimizer.report.secrets import hide_secrets
from optimizer.report.view import View

ALWAYS_PRESENT_METRICS = (
    "output_tokens_per_s",
    "p99_e2e_ms",
    "p99_ttft_ms",
    "p99_tpot_ms",
    "p99_itl_ms",
    "preemptions",
)
"""Keys of every trial's `metrics`, null where there is no figure; others follow as measured."""


class StudySummary(View):
    """One study in `status --json`."""

    study: str = Field(description="Name of the study.")
    trials: int = Field(description="Number of trials of the search in the record, whatever their state.")
    best: int | None = Field(description="Number of the best feasible trial; null when there is none.")


class StudyList(View):
    """`status --json`."""

    studies: list[StudySummary] = Field(description="Every study of the history.")


class FailureView(View):
    """Why a trial has no measurement."""

    kind: str = Field(description="What went wrong, such as `kv_cache_too_small`.")
    stage: str = Field(description="Where in the trial: launching, warming_up, measuring or stopping.")
    blame: str = Field(description="`config` or `host`.")
    evidence: list[str] = Field(description="Lines that tell it, most telling first.")


class TrialView(View):
    """One trial in `status --study N --json`."""

    number: int = Field(description="0 is the baseline, 1 the defaults; from 1,000,000 on, role confirm.")
    role: str = Field(description="baseline, default, search or confirm.")
    state: str = Field(description="What became of it.")
    params: dict[str, ParamValue | None] = Field(description="Searched parameters that it sets.")
    value: float | None = Field(description="The objective's value; null without a measurement.")
    verdict: str | None = Field(description="feasible, infeasible or undecided; null without a measurement.")
    metrics: dict[str, float | None] = Field(description="Metric name to value, null where there is none.")
    failure: FailureView | None = Field(description="Null when it did not fail.")


class BindingView(View):
    """The limit that most measured trials do not meet."""

    limit: str = Field(description="Metric name of the limit.")
    not_met: int = Field(description="Trials that do not meet it.")
    of: int = Field(description="Trials that were judged by it.")


class NearestView(View):
    """The measured trial that comes nearest to meeting every limit."""

    trial: int = Field(description="Its number.")
    not_met: list[str] = Field(description="Limits that it breaks or that are undecided.")
    excess_percent: float | None = Field(description="How far its worst metric lies over the limit; 0 if undecided.")


class RelaxationView(View):
    """One limit that, relaxed alone, would let a trial meet all."""

    trial: int = Field(description="The trial's number.")
    limit: str = Field(description="Metric name of the limit.")
    stated: float = Field(description="Its value.")
    needed: float = Field(description="The value that would do.")
    percent: float = Field(description="By how much it grows.")
    sure: bool = Field(description="False when the run was too short for an upper end: `needed` is what was observed.")


class NothingFeasibleView(View):
    """What a study without a feasible trial tells; null where nothing was measured that could tell it."""

    binding: BindingView | None = Field(description="The limit that binds.")
    nearest: NearestView | None = Field(description="The nearest miss.")
    least_relaxation: RelaxationView | None = Field(description="The smallest that makes any trial feasible.")
    best_relaxation: RelaxationView | None = Field(description="That which makes the best trial feasible.")


class RecommendedView(View):
    """The setting to use, by all that the trials tell; `export` gives it."""

    trial: int = Field(description="Number of the first feasible trial that measured it.")
    probability: float = Field(description="That it keeps every limit.")
    value: float | None = Field(description="What is expected of it: the posterior median of the objective.")
    low: float | None = Field(description="Lower end of the 95 % interval of that.")
    high: float | None = Field(description="Upper end.")
    runs: int = Field(description="Trials that measured it.")
    reason: str = Field(description="Why this one.")


class StudyView(View):
    """`status --study N --json`."""

    study: str = Field(description="Name of the study.")
    best: int | None = Field(description="Number of the best feasible trial; null when there is none.")
    recommended: RecommendedView | None = Field(description="Null when nothing is feasible, or nothing was derived.")
    nothing_feasible: NothingFeasibleView | None = Field(
        description="Null when a trial is feasible, or none has ended."
    )
    trials: list[TrialView] = Field(description="Every trial, by number.")


class ExportView(View):
    """`export --format json`."""

    argv: list[str] = Field(description="The command that starts the setting.")
    flags: dict[str, JsonValue] = Field(description="Flag name, without dashes, to value.")
    env: dict[str, str] = Field(description="Variables the setting needs.")
    trial: int = Field(description="Number of the trial.")
    value: float | None = Field(description="The objective's value.")
    baseline_value: float | None = Field(description="The baseline's value; null when it was not measured.")
    improvement: float | None = Field(description="How many times better than the baseline: above 1 is better.")
    confirmation: str | None = Field(
        description="What repeats on held-out traffic came to, such as `confirmed`; null when there were none."
    )


def study_list(studies: list[tuple[StudyRecord, list[TrialRecord]]]) -> StudyList:
    """Every study with its best."""
    return StudyList(
        studies=[StudySummary(study=s.name, trials=len(study_trials(t)), best=_best_number(s, t)) for s, t in studies],
    )


def study_view(
    study: StudyRecord, trials: list[TrialRecord], recommendation: Recommendation | None = None
) -> StudyView:
    """A study, its trials, and which of their settings to use."""
    return StudyView(
        study=study.name,
        best=_best_number(study, trials),
        recommended=None if recommendation is None else _recommended_view(recommendation),
        nothing_feasible=_nothing_feasible(study, study_trials(trials)),
        trials=[trial_view(t) for t in trials],
    )


def trial_view(trial: TrialRecord) -> TrialView:
    """A trial as listed with its study."""
    metrics = {name: trial.metrics.get(name) for name in ALWAYS_PRESENT_METRICS} | dict(trial.metrics)
    return TrialView(
        number=trial.number,
        role=trial.role.value,
        state=trial.state.value,
        params={name: _finite_param(value) for name, value in trial.params.items()},
        value=finite(trial.value),
        verdict=None if trial.score is None else trial.score.verdict.value,
        metrics={name: finite(value) for name, value in metrics.items()},
        failure=None if trial.failure is None else _failure_view(trial.failure),
    )


def export_view(study: StudyRecord, trials: list[TrialRecord], trial: TrialRecord, config: EngineConfig) -> ExportView:
    """A trial's setting, and what it is worth."""
    baseline = baseline_of(trials)
    confirmation = judge_confirmation(trials, trial.number, maximise=study.maximise)
    return ExportView(
        argv=command_argv(trial, config),
        flags=dict(exported_flags(config)),
        env=exported_env(config),
        trial=trial.number,
        value=finite(trial.value),
        baseline_value=None if baseline is None else finite(baseline.value),
        improvement=finite(improvement(study, trial, trials)),
        confirmation=None if confirmation is None else confirmation.outcome.value,
    )


def _recommended_view(recommendation: Recommendation) -> RecommendedView:
    return RecommendedView(
        trial=recommendation.number,
        probability=recommendation.probability,
        value=finite(recommendation.value),
        low=finite(recommendation.low),
        high=finite(recommendation.high),
        runs=recommendation.runs,
        reason=recommendation.reason,
    )


def _nothing_feasible(study: StudyRecord, trials: list[TrialRecord]) -> NothingFeasibleView | None:
    if best_trial(trials, maximise=study.maximise) is not None or not any(trial.state.is_final for trial in trials):
        return None
    binding, miss = binding_limit(trials), nearest_miss(trials)
    return NothingFeasibleView(
        binding=None if binding is None else BindingView(limit=binding[0], not_met=binding[1], of=binding[2]),
        nearest=None
        if miss is None
        else NearestView(
            trial=miss.trial.number,
            not_met=[constraint.name for constraint in miss.not_met],
            excess_percent=finite(miss.excess_percent),
        ),
        least_relaxation=_relaxation_view(least_relaxation(trials)),
        best_relaxation=_relaxation_view(best_relaxation(trials, maximise=study.maximise)),
    )


def _relaxation_view(relaxation: Relaxation | None) -> RelaxationView | None:
    if relaxation is None:
        return None
    return RelaxationView(
        trial=relaxation.trial.number,
        limit=relaxation.name,
        stated=relaxation.limit,
        needed=relaxation.needed,
        percent=relaxation.percent,
        sure=relaxation.is_sure,
    )


def finite(value: float | None) -> float | None:
    """The value, or None for one that JSON cannot hold."""
    return value if value is not None and math.isfinite(value) else None


def _finite_param(value: ParamValue) -> ParamValue | None:
    return finite(value) if isinstance(value, float) else value


def _failure_view(failure: Failure) -> FailureView:
    return FailureView(
        kind=failure.kind.value,
        stage=failure.stage.value,
        blame=failure.blame.value,
        evidence=[hide_secrets(line) for line in failure.evidence],
    )


def _best_number(study: StudyRecord, trials: list[TrialRecord]) -> int | None:
    best = best_trial(trials, maximise=study.maximise)
    return None if best is None else best.number
