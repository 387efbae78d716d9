"""Hyperparameters of a Gaussian process: the most probable ones under priors that suit few points in many dimensions.

Length scales have a log-normal prior whose median grows with the square root of the number of parameters, as in
Hvarfner et al. 2024, "Vanilla Bayesian optimization performs great in high dimensions": where the data say nothing,
a parameter is taken to matter little, and the more of them there are, the less each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve
from scipy.optimize import minimize
from scipy.spatial.distance import squareform

from optimizer.core.measurement import FloatArray
from optimizer.tuning.gp.kernel import Kernel, PairDistances, matern_and_slope
from optimizer.tuning.gp.regression import Data, GaussianProcess, robust_cholesky

_MOST_GROUPS_ALONE = 40
"""With more parameters the additive part of the kernel costs more time than it is worth."""
_FEWEST_TO_FIT = 3
_MOST_ITERATIONS = 40
_MANY = 50
"""From so many points on the likelihood is sharp and dear: one start and fewer steps are enough."""
_ITERATIONS_FOR_MANY = 14
"""Of 23 fits to 100 trials 20 end within 0.5 in log density of where 60 steps end, and all within 1.5."""
_POINTS_BEFORE = 4.0
"""Points that the expected spread of the targets counts for."""
_FIXED = 1e-6
"""Width of the prior of what is not fitted."""
_NO_VARIANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What is thought of a quantity before it is seen. Logarithms are natural, variances those of the targets.

    Attributes:
        log_length: Median of log length scale, to which half the log of the number of parameters is added.
        log_length_sd: Its standard deviation.
        spread: Standard deviation of the targets.
        noise_sd: Median of the standard deviation between two runs of one setting, beside what each tells of itself.
        log_noise_sd: Standard deviation of the log of the noise's variance.
        level: Expected value where nothing was seen; None takes the mean of the targets.
        additive: Share of the variance that is thought to be a sum over single parameters.
        weight: Expected weight of a prior model's mean.
        weight_sd: Its standard deviation.
        own_log_lengths: Medians of single parameters, in their order; None takes the usual one. Empty where all do.
    """

    log_length: float = -0.7
    log_length_sd: float = 0.8
    spread: float = 0.4
    noise_sd: float = 0.02
    log_noise_sd: float = 1.0
    level: float | None = None
    additive: float = 0.4
    weight: float = 0.8
    weight_sd: float = 0.4
    own_log_lengths: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class _Problem:
    """The negative log posterior of the hyperparameters and its gradient.

    The vector holds log lengths, log joint, log additive and log noise variance, and the weight.
    """

    data: Data
    distances: PairDistances
    level: float
    constant: float
    centre: FloatArray
    spread: FloatArray
    has_additive: bool

    def __call__(self, vector: FloatArray) -> tuple[float, FloatArray]:
        groups, diagonal = len(self.distances.squared), np.diag_indices(len(self.data))
        lengths, (joint, additive, noise) = np.exp(vector[:groups]), np.exp(vector[groups : groups + 3])
        additive = additive if self.has_additive else 0.0
        together, slope = matern_and_slope(lengths**-2 @ self.distances.squared)
        summed, slopes = self._alone(lengths)
        covariance = squareform(joint * together + additive * summed + self.constant)
        covariance[diagonal] = joint + additive + self.constant + noise + self.data.sds**2
        lower = robust_cholesky(covariance)
        inverse = _inverse(lower)
        residual = self.data.targets - self.level - vector[-1] * self.data.means
        solved = inverse @ residual
        value = 0.5 * float(residual @ solved) + float(np.sum(np.log(np.diag(lower))))
        inner = 0.5 * (inverse - np.outer(solved, solved))
        trace, pairs = float(np.trace(inner)), 2.0 * squareform(inner, checks=False)
        gradient = np.empty_like(vector)
        gradient[:groups] = lengths**-2 * (self.distances.squared @ (joint * pairs * slope))
        gradient[:groups] += additive * (slopes @ pairs)
        gradient[groups] = joint * (float(pairs @ together) + trace)
        gradient[groups + 1] = additive * (float(pairs @ summed) + trace)
        gradient[groups + 2] = noise * trace
        gradient[-1] = -float(self.data.means @ solved)
        off = (vector - self.centre) / self.spread
        return value + 0.5 * float(off @ off), gradient + off / self.spread

    def _alone(self, lengths: FloatArray) -> tuple[FloatArray, FloatArray]:
        if self.has_additive:
            return self.distances.alone(lengths)
        return np.zeros(self.distances.squared.shape[1]), np.zeros_like(self.distances.squared)


def fitted(data: Data, groups: Sequence[slice], beliefs: Beliefs, *, has_prior: bool = False) -> GaussianProcess:
    """The process with the most probable hyperparameters.

    Args:
        data: At least one point.
        groups: Columns of each parameter, and behind them those of a prior model's figures where there is one.
        beliefs: Priors.
        has_prior: Whether there is one: then the points' means come from it too, and their weight is fitted.
    """
    problem = _problem(data, groups, beliefs, has_prior=has_prior)
    best = problem.centre
    if len(data) >= _FEWEST_TO_FIT:
        bounds = list(zip(problem.centre - _reach(problem), problem.centre + _reach(problem), strict=True))
        if has_prior:
            bounds[-1] = (0.0, 1.5)
        options = {"maxiter": _MOST_ITERATIONS if len(data) < _MANY else _ITERATIONS_FOR_MANY}
        ends = [
            minimize(problem, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
            for start in _starts(problem)
        ]
        best = min(ends, key=lambda end: float(end.fun)).x
    count = len(groups)
    lengths, (joint, additive, noise) = np.exp(best[:count]), np.exp(best[count : count + 3])
    kernel = Kernel(groups, lengths, float(joint), float(additive) if problem.has_additive else 0.0, problem.constant)
    return GaussianProcess(kernel, float(noise), problem.level, float(best[-1]), data)


def _starts(problem: _Problem) -> list[FloatArray]:
    """The prior's centre, and shorter lengths: the posterior often has a mode near each."""
    shorter = problem.centre.copy()
    shorter[: len(problem.distances.squared)] -= 1.0
    return [problem.centre, shorter] if len(problem.data) < _MANY else [shorter]


def _reach(problem: _Problem) -> FloatArray:
    return np.minimum(4.0 * problem.spread, 6.0)


def _problem(data: Data, groups: Sequence[slice], beliefs: Beliefs, *, has_prior: bool) -> _Problem:
    count = len(groups)
    weight = beliefs.weight if has_prior else 0.0
    level = float(np.mean(data.targets)) if beliefs.level is None else beliefs.level
    # A prior model that is off by far must not make the targets look wilder than they are.
    about = (data.targets - weight * data.means, data.targets)
    squares = min(float(np.sum((one - np.mean(one)) ** 2)) for one in about)
    variance = (_POINTS_BEFORE * beliefs.spread**2 + squares) / (_POINTS_BEFORE + len(data))
    has_additive = beliefs.additive > 0.0 and count - has_prior <= _MOST_GROUPS_ALONE
    alone = beliefs.additive if has_additive else 0.0
    centre = np.array(
        [
            *_log_lengths(beliefs, count),
            math.log(variance * (1.0 - alone)),
            math.log(variance * alone) if has_additive else 0.0,
            2.0 * math.log(beliefs.noise_sd),
            weight,
        ]
    )
    widths = np.array(
        [beliefs.log_length_sd] * count
        + [1.0, 1.0 if has_additive else _FIXED, beliefs.log_noise_sd, beliefs.weight_sd if has_prior else _FIXED]
    )
    constant = variance if beliefs.level is None else _NO_VARIANCE
    return _Problem(data, PairDistances.of(data.features, groups), level, constant, centre, widths, has_additive)


def _log_lengths(beliefs: Beliefs, count: int) -> list[float]:
    usual = beliefs.log_length + 0.5 * math.log(count)
    return [usual if own is None else own for own in beliefs.own_log_lengths or (None,) * count]


def _inverse(lower: FloatArray) -> FloatArray:
    inverse: FloatArray = cho_solve((lower, True), np.eye(len(lower)), check_finite=False)
    return inverse
