"""`measure --objective capacity`: one configuration, many rates in one engine life, as in a trial of a study."""

from __future__ import annotations

from dataclasses import replace

from optimizer.app.figures import Question, with_figures
from optimizer.app.traffic import TrafficOptions
from optimizer.core.errors import InputError
from optimizer.core.measurement import Measurement
from optimizer.core.record import TrialRecord
from optimizer.core.trial import TrialRole, TrialState
from optimizer.objectives import OBJECTIVES
from optimizer.objectives.objective import KNEE
from optimizer.report.capacity_view import CapacityView, RateView
from optimizer.report.json_view import finite
from optimizer.report.measure_view import MeasureView
from optimizer.tuning.aim import Aim
from optimizer.tuning.capacity import CapacityFound
from optimizer.tuning.judging import judged
from optimizer.tuning.trial_pipeline import AttemptOutcome

CAPACITY_OBJECTIVE = "capacity"
_TRIAL = TrialRecord("measure", 0, TrialRole.BASELINE, TrialState.RUNNING)
"""What a measurement without a study is to those who judge trials."""


def check_objective(objective: str | None, traffic: TrafficOptions, *, sweep: str | None, offline: bool) -> None:
    """Refuse another objective than a capacity, and options that say what its search decides.

    Raises:
        InputError: They do not go together.
    """
    if objective is None:
        return
    if objective != CAPACITY_OBJECTIVE:
        raise InputError(
            f"--objective {objective}: a measurement shows every metric in any case, and only a capacity takes another",
            hint=f"leave it out, or give --objective {CAPACITY_OBJECTIVE}",
        )
    given = {
        "--sweep": sweep is not None,
        "--offline": offline,
        "--requests": traffic.requests is not None,
        "--concurrency": traffic.concurrency is not None,
        "--rate": traffic.rate_per_s is not None,
        "--duration": traffic.duration_s is not None,
    }
    for option, is_given in given.items():
        if is_given:
            raise InputError(
                f"{option} and --objective {CAPACITY_OBJECTIVE} exclude each other: the search sets rates and windows",
                hint="leave one of the two out; the longest window is the workload's (window.max_s)",
            )


def capacity_aim(question: Question) -> Aim:
    """What the attempt has to find out."""
    return Aim(OBJECTIVES[CAPACITY_OBJECTIVE], tuple(question.limits), rules=question.rules)


def with_capacity(base: MeasureView, outcome: AttemptOutcome, found: CapacityFound, question: Question) -> MeasureView:
    """The view with the capacity, every rate, and all figures of the run that counts."""
    aim = capacity_aim(question)
    trial = judged(_TRIAL, outcome, objective=aim.objective, limits=lambda _: aim.limits, rules=aim.rules)
    measurement = _without_notes(outcome.measurement, found)
    asked = replace(question, workload=found.run.workload, rules=replace(question.rules, level=found.level))
    view = with_figures(base, measurement, asked)
    limits = [limit.model_copy(update={"verdict": _verdict(trial, limit.name)}) for limit in view.limits]
    told = {"capacity": _capacity(found, trial), "verdict": found.kept.verdict.value, "limits": limits}
    return view.model_copy(update=told)


def _verdict(trial: TrialRecord, limit: str) -> str:
    """Of the search, which knows more than the run: the other rates, and a model that heard the same requests."""
    constraints = () if trial.score is None else trial.score.constraints
    return next(constraint.verdict.value for constraint in constraints if constraint.name == limit)


def _without_notes(measurement: Measurement | None, found: CapacityFound) -> Measurement:
    """The measurement without the lines that tell the search in words: the view has it as a table."""
    if measurement is None:
        raise AssertionError("a capacity that was found was measured")
    notes = tuple(note for note in measurement.engine.notes if note not in found.notes)
    return replace(measurement, engine=replace(measurement.engine, notes=notes))


def _capacity(found: CapacityFound, trial: TrialRecord) -> CapacityView:
    result, score = found.result, trial.score
    if score is None:
        raise AssertionError("a capacity that was found has a score")
    return CapacityView(
        value=result.rate_per_s,
        high=finite(score.high),
        confidence=score.confidence,
        knee=finite(trial.metrics.get(KNEE)),
        infeasible_above=result.infeasible_per_s,
        served=result.served_per_s,
        metrics_at=found.kept.rate_per_s,
        rates=[
            RateView(
                rate_per_s=level.rate_per_s,
                verdict=level.verdict.value,
                probe=level.probe,
                headroom=finite(level.headroom),
                requests=level.requests,
            )
            for level in result.levels
        ],
    )
