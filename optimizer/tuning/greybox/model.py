"""The grey box: an analytic model of the engine that trials correct, as the mean that a search's model starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from optimizer.core.engine_config import FlagValue
from optimizer.core.measurement import FloatArray
from optimizer.objectives.objective import CAPACITY
from optimizer.tuning.greybox.calibration import (
    NOISE,
    Fit,
    fit_acceptance,
    fit_behaviour,
    fit_coefficients,
    positive,
    usual_acceptance,
)
from optimizer.tuning.greybox.capacity import log_capacity
from optimizer.tuning.greybox.coefficients import prior_of
from optimizer.tuning.greybox.engine_flags import EngineFlags, acceptance_key, engine_flags
from optimizer.tuning.greybox.engine_metrics import log_metric, log_metrics
from optimizer.tuning.greybox.engine_model import Behaviour, Steady, steady_state
from optimizer.tuning.greybox.facts import ServingFacts
from optimizer.tuning.greybox.goodness import Goodness, goodness_of
from optimizer.tuning.greybox.pool import Pool, fitted_pool
from optimizer.tuning.strategy import Estimate, Params, Seen

FlagsOf = Callable[[Params], Mapping[str, FlagValue]]

VALUE = "value"
"""Key of the objective among predictions; the others are names of limits."""

_STANDS_FOR = {"output_tokens_per_j": "output_tokens_per_s"}
"""Objectives that follow another metric up to a constant: a card under load draws much the same."""
_MOST_EXCESS = 2.99


@dataclass(frozen=True, slots=True)
class FittedGreyBox:
    """The model after some trials.

    Attributes:
        facts: Of the study.
        flags_of: Turns a setting into its flags.
        fit: The coefficients.
        pool: The KV pool.
        acceptance: By method of speculation, of those that trials tried.
        hidden_hits: As in `Behaviour`.
        preemption: The same.
        metric: The objective's.
        sign: 1 where it is maximised, -1 where it is minimised.
        goodness: By key of `predict`.
        constants: By the same keys: what is added to the model's own figure.
        centres: By the same keys: the mean of what was seen, which predictions shrink to where they are no good.
    """

    facts: ServingFacts
    flags_of: FlagsOf
    fit: Fit
    pool: Pool
    acceptance: Mapping[str, float]
    hidden_hits: float
    preemption: float
    metric: str
    sign: float
    goodness: Mapping[str, Goodness]
    constants: Mapping[str, float]
    centres: Mapping[str, float]

    def predict(self, settings: Sequence[Params]) -> Mapping[str, FloatArray]:
        """Natural logarithms: under `value` of the objective (higher is better), under limits of predicted / limit.

        Shape (n,) each; NaN where nothing can be told. What trials have shown to be no good is drawn to the mean of
        what was seen, by the weight of its goodness: at 0 it is the same for all settings.
        """
        launches = [self.flags_of(params) for params in settings]
        told = self.raw(launches)
        shrunk = {}
        for key, figures in told.items():
            weight = self.goodness[key].weight
            shrunk[key] = self.centres[key] + weight * (figures - self.centres[key])
        return shrunk

    def raw(self, launches: Sequence[Mapping[str, FlagValue]]) -> Mapping[str, FloatArray]:
        """As `predict`, of flags, without regard to goodness."""
        flags = engine_flags(launches, self.facts)
        behaviour = Behaviour(self.facts, _chances(launches, self.acceptance), self.hidden_hits, self.preemption)
        engine = _Launched(flags, self.pool.tokens(flags), behaviour)
        figures = engine.figures(self.metric, self.sign, self.fit.coefficients, self.constants)
        return {
            key: np.where(flags.told > 0.0, figures[key] + constant, np.nan)
            for key, constant in self.constants.items()
            if key in figures
        }


@dataclass(frozen=True, slots=True)
class _Launched:
    """Launches, and all that is known of them but the coefficients.

    Attributes:
        flags: Of each.
        pool_tokens: The same.
        behaviour: Of the requests.
        rates: Requests per second at which each was measured, where each had a rate of its own.
    """

    flags: EngineFlags
    pool_tokens: FloatArray
    behaviour: Behaviour
    rates: FloatArray | None = None

    def steady(self, coefficients: FloatArray) -> Steady:
        """Their steady states."""
        return steady_state(coefficients, self.flags, self.pool_tokens, self.behaviour, self.rates)

    def figures(
        self, metric: str, sign: float, coefficients: FloatArray, constants: Mapping[str, float]
    ) -> dict[str, FloatArray]:
        """By key of `predict` what the model says, up to a constant; with `capacity` only the objective.

        Args:
            metric: The objective's.
            sign: -1 where it is minimised.
            coefficients: Shape (7,), or (7, n) for a set of its own for each launch.
            constants: By limit, as in `FittedGreyBox`.
        """
        limits = {key: constant for key, constant in constants.items() if key != VALUE}
        if metric == CAPACITY:
            told = log_capacity(coefficients, self.flags, self.pool_tokens, self.behaviour, limits)
            return {VALUE: sign * told}
        steady = self.steady(coefficients)
        named = {VALUE: log_metric(steady, self.behaviour.facts, metric)} | {
            key: log_metric(steady, self.behaviour.facts, key) for key in limits
        }
        return {key: sign * told if key == VALUE else told for key, told in named.items() if told is not None}


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One quantity over those trials that showed it, in log units: what the fit says, and the fit without the trial."""

    seen: FloatArray
    noise_sd: FloatArray
    fitted: FloatArray
    foretold: FloatArray

    @classmethod
    def of(cls, estimates: Sequence[Estimate | None], fitted: FloatArray, foretold: FloatArray) -> Self:
        """Of those trials that have an estimate; arrays of all of them."""
        rows = [row for row, estimate in enumerate(estimates) if estimate is not None]
        kept = [estimate for estimate in estimates if estimate is not None]
        return cls(
            np.array([estimate.mean for estimate in kept]),
            np.array([estimate.sd for estimate in kept]),
            fitted[rows],
            foretold[rows],
        )

    @property
    def constant(self) -> float:
        """What is added to the model's figures."""
        return float(np.median(self.seen - self.fitted))


class GreyBox:
    """The model before any trial.

    Args:
        facts: What is known of traffic, model and device.
        flags_of: Turns a setting of the space into all flags of its launch.
        metric: The objective's name among the metrics.
        maximise: Its direction.
    """

    def __init__(self, facts: ServingFacts, flags_of: FlagsOf, *, metric: str, maximise: bool) -> None:
        self._facts = facts
        self._flags_of = flags_of
        self._metric = _STANDS_FOR.get(metric, metric)
        self._sign = 1.0 if maximise else -1.0

    def fitted(self, history: Sequence[Seen]) -> FittedGreyBox | None:
        """The model after these trials; None before any that was measured. The same history gives the same model."""
        served = [trial for trial in history if self._is_served(trial)]
        flags = engine_flags([self._flags(trial) for trial in served], self._facts)
        served = [trial for trial, told in zip(served, flags.told, strict=True) if told > 0.0]
        return self._fitted(served) if served else None

    def _fitted(self, served: Sequence[Seen]) -> FittedGreyBox:
        launches = [self._flags(trial) for trial in served]
        observed = [trial.metrics for trial in served]
        facts, rates = self._facts, None
        if self._metric == CAPACITY:
            # Each trial was measured at the rate that it was found to serve.
            rates = np.array([metrics["requests_per_s"] or 0.0 for metrics in observed])
            facts = dataclasses.replace(facts, in_flight=None, rate_per_s=float(np.median(rates)))
        flags = engine_flags(launches, facts)
        pool = fitted_pool(flags, [metrics.get("kv_cache_tokens") for metrics in observed], facts)
        tokens = pool.tokens(flags)
        acceptance = fit_acceptance([acceptance_key(launch) for launch in launches], flags.guesses, observed)
        hidden, preemption = fit_behaviour(flags, tokens, observed, facts)
        engine = _Launched(flags, tokens, Behaviour(facts, _chances(launches, acceptance), hidden, preemption), rates)
        fit = fit_coefficients(prior_of(facts), observed, lambda c: log_metrics(engine.steady(c), facts))
        told = self._comparisons(served, engine, fit)
        return FittedGreyBox(
            facts=facts,
            flags_of=self._flags_of,
            fit=fit,
            pool=pool,
            acceptance=acceptance,
            hidden_hits=hidden,
            preemption=preemption,
            metric=self._metric,
            sign=self._sign,
            goodness={key: goodness_of(one.seen, one.noise_sd, one.foretold) for key, one in told.items()},
            constants={key: one.constant for key, one in told.items()},
            centres={key: float(one.seen.mean()) for key, one in told.items()},
        )

    def _comparisons(self, served: Sequence[Seen], engine: _Launched, fit: Fit) -> dict[str, _Comparison]:
        """By key of `predict` what was seen beside what the model says of it."""
        names = dict.fromkeys(name for trial in served for name in trial.limits)
        facts = engine.behaviour.facts
        steady, without = engine.steady(fit.coefficients), engine.steady(fit.without.T)
        found = {}
        for name in names:
            fitted, left_out = log_metric(steady, facts, name), log_metric(without, facts, name)
            estimates = [trial.limits.get(name) for trial in served]
            # A limit is told up to e^3 times; beyond, nothing can be compared.
            told = [one if one is not None and abs(one.mean) < _MOST_EXCESS else None for one in estimates]
            if fitted is not None and left_out is not None and any(told):
                found[name] = _Comparison.of(told, fitted, left_out)
        constants = {name: one.constant for name, one in found.items()}
        values = [trial.value for trial in served]
        figures = engine.figures(self._metric, self._sign, fit.coefficients, constants)
        if VALUE in figures and any(values):
            foretold = engine.figures(self._metric, self._sign, fit.without.T, constants)
            found[VALUE] = _Comparison.of(values, figures[VALUE], foretold[VALUE])
        return found

    def _is_served(self, trial: Seen) -> bool:
        needed = ("requests_per_s",) if self._metric == CAPACITY else ()
        measured = any(positive(trial.metrics.get(name)) is not None for name in NOISE)
        return measured and all(positive(trial.metrics.get(name)) is not None for name in needed)

    def _flags(self, trial: Seen) -> Mapping[str, FlagValue]:
        return self._flags_of(dict(trial.params)) if trial.config is None else trial.config.flags


def _chances(launches: Sequence[Mapping[str, FlagValue]], acceptance: Mapping[str, float]) -> FloatArray:
    methods = [acceptance_key(flags) for flags in launches]
    return np.array([acceptance.get(method or "", usual_acceptance(method)) for method in methods])
