"""From what an attempt came to, to the trial's final record; and what is told when the host is at fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from optimizer.core.errors import HostError
from optimizer.core.failure import Failure
from optimizer.core.measurement import Measurement
from optimizer.core.record import TrialRecord
from optimizer.core.scoring import Verdict
from optimizer.core.stop_reason import StopReason
from optimizer.core.trial import TrialState
from optimizer.engine.memory import MemoryPrediction
from optimizer.metrics import summarize
from optimizer.objectives import USUAL_RULES, Limit, Objective, VerdictRules, score
from optimizer.objectives.objective import CAPACITY, KNEE, TOKENS_PER_JOULE, objective_metrics
from optimizer.objectives.reported import score_reported
from optimizer.tuning.prescreen import with_memory_facts
from optimizer.tuning.trial_pipeline import AttemptOutcome

STATE_OF_VERDICT = {
    Verdict.FEASIBLE: TrialState.FEASIBLE,
    Verdict.INFEASIBLE: TrialState.INFEASIBLE,
    Verdict.UNDECIDED: TrialState.UNDECIDED,
}


def judged(
    trial: TrialRecord,
    outcome: AttemptOutcome,
    *,
    objective: Objective,
    limits: Callable[[Mapping[str, float | None]], Sequence[Limit]],
    prediction: MemoryPrediction | None = None,
    rules: VerdictRules = USUAL_RULES,
) -> TrialRecord:
    """The trial in its final state.

    Args:
        trial: As it stands.
        outcome: Of its last attempt.
        objective: What is sought.
        limits: What must hold, given the trial's own metrics: the baseline's limits may be multiples of them.
        prediction: Of the engine's memory, before the launch.
        rules: How sure a verdict must be.

    Raises:
        HostError: The objective's metric cannot be measured on this host.
    """
    if outcome.reported is not None:
        values = outcome.reported.values
        told = score_reported(objective, limits(values), outcome.reported, rules)
        return replace(trial, state=STATE_OF_VERDICT[told.verdict], metrics=values, score=told)
    if outcome.measurement is None:
        return replace(trial, state=TrialState.FAILED, failure=outcome.failure)
    metrics = summarize(with_memory_facts(outcome.measurement, outcome.startup, prediction))
    load, must_hold = outcome.measurement.load, limits(metrics)
    metrics |= objective_metrics(load, must_hold)
    capacity = outcome.capacity
    if capacity is not None:
        knee = capacity.result.knee
        metrics |= {CAPACITY: capacity.rate_per_s, KNEE: None if knee is None else knee.rate_per_s}
        rules = replace(rules, level=capacity.level)
    if metrics.get(objective.metric) is None:
        raise _not_measured(trial, objective, outcome.measurement)
    scored = score(objective, must_hold, outcome.measurement, metrics, rules)
    given_up = load.stopped_by is StopReason.DOMINATED and scored.verdict is not Verdict.INFEASIBLE
    if capacity is not None:
        scored, given_up = capacity.told(scored), capacity.result.dominated
    state = TrialState.DOMINATED if given_up else STATE_OF_VERDICT[scored.verdict]
    notes = (*trial.notes, *outcome.measurement.engine.notes)
    return replace(trial, state=state, metrics=metrics, score=scored, notes=notes)


def _not_measured(trial: TrialRecord, objective: Objective, measurement: Measurement) -> HostError:
    told = [note for note in measurement.engine.notes if "energy" in note or "power" in note]
    why = f" ({'; '.join(told)})" if told and objective.metric == TOKENS_PER_JOULE else ""
    return HostError(
        f"trial {trial.number} was measured, but not its {objective.metric}, which the study seeks{why}",
        hint="choose another --objective, such as throughput, and a new --study name",
    )


def host_error(trial: TrialRecord, failure: Failure, in_a_row: int) -> HostError:
    """What ends a run whose host spoils one attempt after another."""
    times = "once" if in_a_row == 1 else f"{in_a_row} times in a row"
    evidence = f" [{failure.evidence[0]}]" if failure.evidence else ""
    return HostError(
        f"trial {trial.number} met a fault of the host {times}; the last: {failure.detail}{evidence}",
        hint="put the host right and run the same command: the study goes on with this trial",
    )
