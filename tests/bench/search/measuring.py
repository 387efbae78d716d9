"""One run of a setting on a virtual engine as a trial's record, with noise, intervals and verdicts like a live one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from optimizer.core.failure import Blame, Failure
from optimizer.core.record import ParamValue, TrialRecord
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.trial import TrialState
from optimizer.objectives import USUAL_RULES
from optimizer.objectives.score import overall
from optimizer.tuning.judging import STATE_OF_VERDICT
from tests.bench.search.situation import Crash, Noise, Situation, Truth, rng_of

STUDY = "bench"
_Z = 1.6448536269514722
"""Of the two-sided 90 % interval that the product prints by default."""
_SHARED = 0.5
"""Share of the variance that throughput and all latencies of a run have in common."""
_STEADY = ("kv_cache_tokens", "window_s", "error_rate")
"""Figures that do not vary between two runs of a setting."""


def measured(
    situation: Situation, number: int, params: Mapping[str, ParamValue], run: int | None = None
) -> TrialRecord:
    """The record of trial `number`; the same for the same situation, number and setting, whichever strategy asked.

    Args:
        situation: Where it runs.
        number: The trial's.
        params: The setting.
        run: Draws the noise; the trial's number unless told.
    """
    truth = situation.truth(params)
    trial = TrialRecord(
        study=STUDY,
        number=number,
        role=situation.role(number),
        state=TrialState.RUNNING,
        params=dict(params),
        config=situation.config(params),
    )
    if truth.crash is not None:
        return _final(trial, TrialState.FAILED, failure=_failure(truth.crash))
    rng = rng_of("run", situation.key, number if run is None else run)
    metrics = noisy(truth, situation.noise, rng)
    scored = judged(situation, metrics)
    return _final(trial, STATE_OF_VERDICT[scored.verdict], metrics=metrics, score=scored)


def noisy(truth: Truth, noise: Noise, rng: np.random.Generator) -> dict[str, float | None]:
    """What one run shows of the truth: a slow run is slow in throughput and in every latency."""
    if noise.residuals:
        residual = noise.residuals[int(rng.integers(len(noise.residuals)))]
        return {name: value * math.exp(residual.get(name, 0.0)) for name, value in truth.metrics.items()}
    common = float(rng.standard_normal())
    metrics: dict[str, float | None] = {}
    for name, value in truth.metrics.items():
        own = float(rng.standard_normal())
        if name in _STEADY:
            metrics[name] = value
            continue
        z = math.sqrt(_SHARED) * common + math.sqrt(1.0 - _SHARED) * own
        metrics[name] = value * math.exp(noise.latency * z if name.endswith("_ms") else -noise.throughput * z)
    return metrics


def judged(situation: Situation, metrics: Mapping[str, float | None]) -> Score:
    """The score in the product's form."""
    value = metrics[situation.metric]
    assert value is not None
    seen = math.sqrt(situation.noise.seen)
    is_latency = situation.metric.endswith("_ms")
    half = _Z * seen * (situation.noise.latency if is_latency else situation.noise.throughput)
    counted = int(metrics["requests_counted"] or 0)
    constraints = tuple(
        _constraint(name, limit, metrics[name] or 0.0, _Z * seen * situation.noise.latency, counted)
        for name, limit in situation.limits.items()
    )
    return Score(
        situation.metric,
        value,
        situation.maximise,
        overall(constraints),
        constraints,
        low=value * math.exp(-half),
        high=value * math.exp(half),
        confidence=USUAL_RULES.confidence,
    )


def _constraint(name: str, limit: float, observed: float, half: float, counted: int) -> Constraint:
    """A limit and its verdict: feasible when even the upper end lies below the limit and its tolerance, and so on.

    The sequential test of the product decides the same way (docs/verdict.md); what it cannot decide within its window
    is UNDECIDED. The share of failed requests is known without noise.
    """
    if name == "error_rate":
        half = 0.0
    low, high = observed * math.exp(-half), observed * math.exp(half)
    tolerance = 0.0 if name == "error_rate" else USUAL_RULES.tolerance
    if high <= limit * (1.0 + tolerance) and observed <= limit:
        verdict = Verdict.FEASIBLE
    elif low >= limit * (1.0 - tolerance) and observed > limit:
        verdict = Verdict.INFEASIBLE
    else:
        verdict = Verdict.UNDECIDED
    violation = math.log(max(observed / limit, 1e-3))
    return Constraint(
        name, limit, observed, low, high, violation, verdict, n=counted, confidence=USUAL_RULES.confidence
    )


def _failure(crash: Crash) -> Failure:
    return Failure(
        kind=crash.kind,
        stage=crash.stage,
        blame=Blame.CONFIG,
        detail=crash.detail,
        violation=crash.violation,
        phase=crash.phase,
    )


def _final(
    trial: TrialRecord,
    state: TrialState,
    *,
    metrics: Mapping[str, float | None] | None = None,
    score: Score | None = None,
    failure: Failure | None = None,
) -> TrialRecord:
    return TrialRecord(
        study=trial.study,
        number=trial.number,
        role=trial.role,
        state=state,
        params=trial.params,
        config=trial.config,
        metrics=metrics or {},
        score=score,
        failure=failure,
    )
