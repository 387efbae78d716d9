"""Optuna's Gaussian processes, told this project's history in the form in which they can learn from it."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import GPSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from optimizer.core.errors import InputError
from optimizer.core.record import ParamValue
from optimizer.search_spaces import IntParameter, Parameter, SearchSpace
from optimizer.tuning.distributions import distribution_of
from optimizer.tuning.nearest_fit import nearest
from optimizer.tuning.random_settings import neighbour, random_setting
from optimizer.tuning.strategies.draw import STARTUP_TRIALS, fresh, next_seed
from optimizer.tuning.strategies.levels import usual_value
from optimizer.tuning.strategy import Ask, Params, Seen
from optimizer.tuning.violations import CRASH, clipped

MOST_DRAWS = 8
"""Draws of one ask; each fits and maximises anew, which takes about a second."""
WIDE = 64
"""A range of more whole numbers than that is modelled as continuous: Optuna's search over them takes five times as long
(5.7 against 1.0 s an ask, measured on 2048..32768)."""
_UNGRADED = 1.0
_NEIGHBOURS = 16
"""Steps away from a draw that repeats a trial or breaks a rule, before the nearest setting that does neither is sought
on a grid."""


class OptunaGp:
    """GPSampler over a copy of the history in memory, in which every trial is one that it learns from.

    It learns from COMPLETE trials alone, from parameters that all of them set, and tells constraints apart by their
    position. So in the copy a crash is a COMPLETE trial that violates `crash`, with the median of the others for what
    it did not measure; a parameter that does not exist has its usual value; and all trials have the same constraints.

    Args:
        space: The parameters.

    Raises:
        InputError: torch, which it needs, is not installed.
    """

    name = "optuna-gp"

    def __init__(self, space: SearchSpace) -> None:
        if importlib.util.find_spec("torch") is None:
            raise InputError(
                "--sampler optuna-gp needs torch, which is not installed beside this program",
                hint="install torch into this Python, or take another --sampler",
            )
        self._space = space
        self._distributions = {name: _distribution(parameter) for name, parameter in space.parameters.items()}
        self._usual = {name: usual_value(parameter) for name, parameter in space.parameters.items()}

    def proposals(self, ask: Ask) -> Iterator[Params]:
        """Random settings first, then as many of the model's as an ask may take time for."""
        return fresh(self._space, ask, self._random(ask)) if len(ask.history) < STARTUP_TRIALS else self._modelled(ask)

    def _random(self, ask: Ask) -> Iterator[Params]:
        while True:
            yield random_setting(self._space.parameters, ask.rng)

    def _modelled(self, ask: Ask) -> Iterator[Params]:
        tried = [*(trial.params for trial in ask.history), *ask.pending]
        copy = self._copied(ask)
        for _ in range(MOST_DRAWS):
            drawn = self._drawn(copy, next_seed(ask.rng))
            kept = self._worth_a_trial(drawn, ask, tried)
            known = len(ask.rejected)
            if kept is not None:
                yield kept
            violation = ask.rejected[-1][1].violation if len(ask.rejected) > known else _UNGRADED
            copy.add_trial(self._crashed(copy, drawn, violation))

    def _drawn(self, copy: Study, seed: int) -> Params:
        copy.sampler = GPSampler(seed=seed, n_startup_trials=0, warn_independent_sampling=False)
        # Of a history in which all trials look alike every candidate is worth the same, and it divides by zero.
        with _quiet(), np.errstate(invalid="ignore"):
            trial = copy.ask(self._distributions)
        drawn = trial.params
        copy.tell(trial, state=TrialState.FAIL)
        return {name: self._whole(name, value) for name, value in drawn.items()}

    def _whole(self, name: str, value: ParamValue) -> ParamValue:
        parameter = self._space.parameters[name]
        if not isinstance(parameter, IntParameter) or isinstance(value, str):
            return value
        return parameter.on_grid(value)

    def _worth_a_trial(self, drawn: Params, ask: Ask, tried: Sequence[Mapping[str, ParamValue]]) -> Params | None:
        """The draw; or what keeps the rules, or was not tried, next to it."""

        def is_worth_it(params: Params) -> bool:
            return params not in tried and ask.keeps_rules(params)

        for _ in range(_NEIGHBOURS):
            if is_worth_it(self._space.existing(drawn)):
                return drawn
            drawn = {name: neighbour(p, drawn[name], ask.rng) for name, p in self._space.parameters.items()}
        return nearest(self._space, drawn, is_worth_it)

    def _copied(self, ask: Ask) -> Study:
        with _quiet():
            copy = optuna.create_study(direction="maximize")
        names = sorted({name for trial in ask.history for name in trial.limits})
        measured = [trial for trial in ask.history if trial.crash is None and trial.value is not None]
        value = _median([trial.value.mean for trial in measured if trial.value is not None])
        limits = {name: _median([t.limits[name].mean for t in measured if name in t.limits]) for name in names}
        for trial in ask.history:
            copy.add_trial(self._told(trial, value, limits))
        for params in ask.pending:
            copy.add_trial(self._trial(params, state=TrialState.RUNNING))
        return copy

    def _told(self, trial: Seen, value: float, limits: Mapping[str, float]) -> FrozenTrial:
        crash = -1.0 if trial.crash is None else clipped(trial.crash)
        own = {name: trial.limits[name].mean if name in trial.limits else usual for name, usual in limits.items()}
        constraints = {name: clipped(excess) for name, excess in {**own, CRASH: crash}.items()}
        told = value if trial.value is None or trial.crash is not None else trial.value.mean
        return self._trial(
            trial.params, state=TrialState.COMPLETE, value=told, constraints=dict(sorted(constraints.items()))
        )

    def _crashed(self, copy: Study, params: Params, violation: float) -> FrozenTrial:
        """A proposal that was turned down, with the middle of what the copy holds for what it did not measure."""
        told = copy.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        names = sorted({name for trial in told for name in trial.constraints} - {CRASH})
        constraints = {name: _median([t.constraints[name] for t in told]) for name in names}
        constraints[CRASH] = clipped(violation)
        value = _median([trial.value for trial in told if trial.value is not None])
        return self._trial(
            params, state=TrialState.COMPLETE, value=value, constraints=dict(sorted(constraints.items()))
        )

    def _trial(
        self,
        params: Mapping[str, ParamValue],
        *,
        state: TrialState,
        value: float | None = None,
        constraints: dict[str, float] | None = None,
    ) -> FrozenTrial:
        full = {**self._usual, **params}
        return create_trial(
            state=state,
            value=value,
            params={name: _within(full[name], distribution) for name, distribution in self._distributions.items()},
            distributions=self._distributions,
            constraints=constraints,
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's remarks on a copy that nobody knows of, and on how well its fits went."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def _distribution(parameter: Parameter) -> BaseDistribution:
    if isinstance(parameter, IntParameter) and parameter.steps > WIDE:
        return FloatDistribution(parameter.low, parameter.high, log=parameter.log)
    return distribution_of(parameter)


def _within(value: ParamValue, distribution: BaseDistribution) -> ParamValue:
    return float(value) if isinstance(distribution, FloatDistribution) else value


def _median(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.median(finite) if finite else 0.0
