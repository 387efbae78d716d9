"""What a search strategy is asked, and what it may know.

A strategy draws settings; whether they keep the rules and fit into memory, and what is recorded of them, is the
business of the sampler that asks it (`rule_keeping_sampler`). So every strategy obeys every space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from optuna.study import Study
from optuna.trial import FrozenTrial

from optimizer.core.engine_config import EngineConfig
from optimizer.core.failure import Blame
from optimizer.core.record import ParamValue, TrialRecord
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.trial import TrialState
from optimizer.tuning.prescreen import Misfit

Params: TypeAlias = dict[str, ParamValue]
"""A setting: the parameters that exist in it, by name."""

_UNKNOWN_SD = 0.05
"""Standard deviation, in log units, of a figure without an interval: two runs of one setting lie that far apart."""
_UNGRADED_CRASH = 1.0
_LARGEST = 3.0
"""Beyond e^3 times a limit it matters no more how far beyond."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The logarithm of a quantity, and the standard deviation with which it was measured."""

    mean: float
    sd: float


@dataclass(frozen=True, slots=True)
class Seen:
    """An ended trial, as a strategy sees it.

    Attributes:
        number: The trial's.
        params: The parameters that it sets; the baseline may lack some of the space's, vLLM's defaults lack all.
        state: One of the final states. Failures that were the host's fault are not told at all.
        value: log of the objective, higher is better (negated where it is minimised); None without a measurement.
        limits: By name log(observed / limit): above 0 is over the limit.
        verdicts: By the same names.
        crash: How far the engine was from starting or surviving, > 0; None when it served.
        metrics: All that was measured.
        config: What was launched.
    """

    number: int
    params: Mapping[str, ParamValue]
    state: TrialState
    value: Estimate | None = None
    limits: Mapping[str, Estimate] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    crash: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    config: EngineConfig | None = None


@dataclass(slots=True)
class Ask:
    """One proposal to be made.

    Attributes:
        number: Of the trial that it is for.
        rng: Seeded by the study and the trial's number: the same history and number give the same proposal.
        history: Ended trials, in the order of their numbers.
        pending: Settings that run elsewhere at this moment.
        keeps_rules: Whether a setting keeps vLLM's rules and the space's.
        misfit: Why a setting cannot start, as far as that is known without a launch.
        rejected: Proposals of this ask that cannot start; grows while the strategy draws.
        study: The same history as Optuna knows it.
        trial: The open trial, as Optuna knows it.
    """

    number: int
    rng: np.random.Generator
    history: tuple[Seen, ...]
    pending: tuple[Mapping[str, ParamValue], ...]
    keeps_rules: Callable[[Mapping[str, ParamValue]], bool]
    misfit: Callable[[Mapping[str, ParamValue]], Misfit | None]
    study: Study
    trial: FrozenTrial
    rejected: list[tuple[Params, Misfit]] = field(default_factory=list)


class Strategy(Protocol):
    """Draws settings, one ask at a time, and keeps nothing between asks."""

    @property
    def name(self) -> str:
        """As `--sampler` names it."""

    def proposals(self, ask: Ask) -> Iterator[Params]:
        """Settings to try, the best first; the first that keeps the rules and may start is taken.

        May be endless. One that ends has nothing more to say, and a random setting is taken.
        """


@runtime_checkable
class ForeseesGain(Protocol):
    """A strategy that says how much it expects of its proposal."""

    @property
    def expected_gain(self) -> float | None:
        """Of the last proposal drawn: what it is expected to bring over the best so far, as a share of it (0.01: 1 %).

        None where that cannot be said, as of a history without a feasible trial.
        """


def seen(trials: Sequence[TrialRecord]) -> tuple[Seen, ...]:
    """The ended trials as a strategy sees them; those that failed by the host's fault are left out."""
    return tuple(
        _seen(trial)
        for trial in sorted(trials, key=lambda trial: trial.number)
        if trial.state.is_final and (trial.failure is None or trial.failure.blame is Blame.CONFIG)
    )


def _seen(trial: TrialRecord) -> Seen:
    constraints = () if trial.score is None else trial.score.constraints
    return Seen(
        number=trial.number,
        params=dict(trial.params),
        state=trial.state,
        value=None if trial.score is None else _value(trial.score),
        limits={c.name: estimate for c in constraints if (estimate := _excess(c)) is not None},
        verdicts={c.name: c.verdict for c in constraints},
        crash=_crash(trial),
        metrics=trial.metrics,
        config=trial.config,
    )


def _crash(trial: TrialRecord) -> float | None:
    if trial.state not in (TrialState.FAILED, TrialState.REJECTED):
        return None
    graded = None if trial.failure is None else trial.failure.violation
    return _UNGRADED_CRASH if graded is None or not 0.0 < graded < math.inf else min(graded, _LARGEST)


def _value(score: Score) -> Estimate | None:
    if not 0.0 < score.value < math.inf:
        return None
    sign = 1.0 if score.maximise else -1.0
    return Estimate(sign * math.log(score.value), _sd(score.value, score.low, score.high, score.confidence))


def _excess(constraint: Constraint) -> Estimate | None:
    observed = constraint.observed
    if observed is None or math.isnan(observed):
        return None
    if observed <= 0.0 or constraint.limit <= 0.0:
        mean = -_LARGEST if observed <= constraint.limit else _LARGEST
    else:
        mean = min(max(math.log(observed / constraint.limit), -_LARGEST), _LARGEST)
    return Estimate(mean, _sd(observed, constraint.low, constraint.high, constraint.confidence))


def _sd(observed: float, low: float | None, high: float | None, confidence: float | None) -> float:
    """From an interval in log units; one without an upper end is taken to reach as far up as down."""
    if low is None or not 0.0 < low < observed:
        return _UNKNOWN_SD
    if high is None or not observed < high < math.inf:
        high = observed * observed / low
    z = NormalDist().inv_cdf(0.5 + (0.95 if confidence is None else confidence) / 2.0)
    return math.log(high / low) / (2.0 * z)
