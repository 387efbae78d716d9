"""BoTorch's noisy expected improvement as one more strategy to compare with, where it happens to be installed.

Nothing depends on it: `pip install botorch` into an environment of one's own is enough to run it here.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence

import torch

# It is in no list of requirements, on purpose.
from botorch.acquisition.logei import qLogNoisyExpectedImprovement  # type: ignore[import-not-found]
from botorch.acquisition.objective import GenericMCObjective  # type: ignore[import-not-found]
from botorch.fit import fit_gpytorch_mll  # type: ignore[import-not-found]
from botorch.models import ModelListGP, SingleTaskGP  # type: ignore[import-not-found]
from botorch.models.transforms import Standardize  # type: ignore[import-not-found]
from gpytorch.mlls import ExactMarginalLogLikelihood  # type: ignore[import-not-found]

from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, Parameter, SearchSpace
from optimizer.tuning.strategy import Ask, Params, Seen
from tests.bench.search.drawing import existing, random_full

STARTUP = 5
"""Served trials before anything is modelled."""
CANDIDATES = 600
_NEAR = 200
"""Of them, so many are the best trial with a few parameters drawn anew."""
_CRASHED, _SERVED = 1.0, -1.0


class BoTorchStrategy:
    """One Gaussian process for the objective, each limit and crashes; the best of random candidates by qLogNEI."""

    name = "botorch"

    def __init__(self, space: SearchSpace) -> None:
        self._space = space

    def proposals(self, ask: Ask) -> Iterator[Params]:
        """Random settings until enough was served, then by acquisition."""
        served = [trial for trial in ask.history if trial.value is not None and trial.limits]
        candidates = self._candidates(ask, served)
        if len(served) < STARTUP:
            yield from candidates
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(int(ask.rng.integers(2**31)))
            scores = self._scores(ask.history, served, candidates)
        for index in sorted(range(len(candidates)), key=lambda at: -scores[at]):
            yield candidates[index]

    def _candidates(self, ask: Ask, served: Sequence[Seen]) -> list[Params]:
        feasible = [trial for trial in served if all(limit.mean <= 0.0 for limit in trial.limits.values())]
        best = max(feasible or served, key=lambda trial: trial.value.mean if trial.value else -math.inf, default=None)
        found = []
        for at in range(CANDIDATES):
            full = random_full(self._space, ask.rng)
            if best is not None and at < _NEAR:
                kept = [name for name in best.params if ask.rng.random() < 0.75]
                full |= {name: best.params[name] for name in kept}
            found.append(existing(self._space, full))
        return [params for params in found if ask.keeps_rules(params)]

    def _scores(self, history: Sequence[Seen], served: Sequence[Seen], candidates: Sequence[Params]) -> list[float]:
        inputs = self._encoded([trial.params for trial in served])
        names = sorted({name for trial in served for name in trial.limits})
        columns = [[trial.value.mean if trial.value else 0.0 for trial in served]]
        columns += [[trial.limits[name].mean if name in trial.limits else 0.0 for trial in served] for name in names]
        models = [_model(inputs, column) for column in columns if _varies(column)]
        crashes = [_SERVED if trial.crash is None else _CRASHED for trial in history]
        if _varies(crashes):
            models.append(_model(self._encoded([trial.params for trial in history]), crashes))
        model = ModelListGP(*models)
        acquisition = qLogNoisyExpectedImprovement(
            model,
            X_baseline=inputs,
            objective=GenericMCObjective(lambda samples, X=None: samples[..., 0]),
            constraints=[lambda samples, at=at: samples[..., at] for at in range(1, len(models))],
            prune_baseline=False,
        )
        with torch.no_grad():
            return [float(score) for score in acquisition(self._encoded(candidates).unsqueeze(1))]

    def _encoded(self, settings: Sequence[Mapping[str, ParamValue]]) -> torch.Tensor:
        rows = [
            [
                number
                for name, p in self._space.parameters.items()
                for number in _numbers(p, params.get(name, p.default))
            ]
            for params in settings
        ]
        return torch.tensor(rows, dtype=torch.float64)


def _numbers(parameter: Parameter, value: ParamValue | None) -> list[float]:
    """A place from 0 to 1 for a range, one number for each value of a choice; the middle for what is not set."""
    if isinstance(parameter, BoolParameter | ChoiceParameter):
        values = (False, True) if isinstance(parameter, BoolParameter) else parameter.values
        return [1.0 if value == other else 0.0 for other in values]
    if value is None or isinstance(value, str):
        return [0.5]
    low, high, number = float(parameter.low), float(parameter.high), float(value)
    if parameter.log:
        low, high, number = math.log(low), math.log(high), math.log(number)
    return [(number - low) / (high - low)]


def _varies(column: Sequence[float]) -> bool:
    return max(column) > min(column)


def _model(inputs: torch.Tensor, column: Sequence[float]) -> SingleTaskGP:
    outputs = torch.tensor(column, dtype=torch.float64).unsqueeze(-1)
    model = SingleTaskGP(inputs, outputs, outcome_transform=Standardize(m=1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model
