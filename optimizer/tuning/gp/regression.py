"""A Gaussian process given its hyperparameters: posterior, leave-one-out predictions, points that are only guessed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from optimizer.core.measurement import FloatArray
from optimizer.tuning.gp.kernel import Kernel

_FIRST_JITTER = 1e-10
_LAST_JITTER = 1.0


@dataclass(frozen=True, slots=True)
class Data:
    """What was observed of one quantity.

    Attributes:
        features: Of the settings, shape (n, columns).
        targets: Shape (n,).
        sds: Standard deviation of each as it was measured, shape (n,).
        means: What a prior model says of each, shape (n,); zeros without one.
    """

    features: FloatArray
    targets: FloatArray
    sds: FloatArray
    means: FloatArray

    def __len__(self) -> int:
        return len(self.targets)

    def with_more(self, features: FloatArray, targets: FloatArray, means: FloatArray) -> Data:
        """With further points whose own noise is none."""
        return Data(
            np.vstack([self.features, features]),
            np.concatenate([self.targets, targets]),
            np.concatenate([self.sds, np.zeros(len(targets))]),
            np.concatenate([self.means, means]),
        )


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """target = level + weight * prior mean + a draw from the kernel + noise.

    Attributes:
        kernel: With its hyperparameters.
        noise: Variance that every observation has beside its own.
        level: Expected value where nothing was observed.
        weight: Of the prior model's mean, 0 for none.
        data: What it is conditioned on.
    """

    kernel: Kernel
    noise: float
    level: float
    weight: float
    data: Data
    _lower: FloatArray = field(init=False, repr=False)
    _solved: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        covariance = self.kernel(self.data.features, self.data.features)
        covariance[np.diag_indices(len(self.data))] += self.noise + self.data.sds**2
        lower = robust_cholesky(covariance)
        residual = self.data.targets - self.level - self.weight * self.data.means
        object.__setattr__(self, "_lower", lower)
        object.__setattr__(self, "_solved", _solve(lower, residual))

    def predict(self, features: FloatArray, means: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of the noiseless quantity, shape (m,) each.

        Args:
            features: Shape (m, columns).
            means: Of the prior model, shape (m,).
        """
        across = self.kernel(self.data.features, features)
        mean = self.level + self.weight * means + across.T @ self._solved
        explained = solve_triangular(self._lower, across, lower=True, check_finite=False)
        variance = self.kernel.variance - np.einsum("nm,nm->m", explained, explained)
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def covariance(self, features: FloatArray) -> FloatArray:
        """Posterior covariance of the noiseless quantity, shape (m, m)."""
        explained = solve_triangular(
            self._lower, self.kernel(self.data.features, features), lower=True, check_finite=False
        )
        found: FloatArray = self.kernel(features, features) - explained.T @ explained
        return found

    def leave_one_out(self) -> FloatArray:
        """log density of each target under the others, shape (n,) (Rasmussen and Williams 2006, eq. 5.10 to 5.12)."""
        inverse = _solve(self._lower, np.eye(len(self.data)))
        variance = 1.0 / np.maximum(np.diag(inverse), 1e-12)
        error = self._solved * variance
        density: FloatArray = -0.5 * (np.log(2.0 * math.pi * variance) + error**2 / variance)
        return density

    def believing(self, features: FloatArray, means: FloatArray) -> GaussianProcess:
        """As if each of these settings had been measured just as expected: nothing is left to learn near them."""
        if not len(features):
            return self
        expected, _ = self.predict(features, means)
        return replace(self, data=self.data.with_more(features, expected, means))


def robust_cholesky(matrix: FloatArray) -> FloatArray:
    """The lower factor of a covariance, with as little added to its diagonal as makes it exist.

    Raises:
        ValueError: The matrix holds values that are not finite.
    """
    if not np.all(np.isfinite(matrix)):
        raise ValueError("a covariance holds values that are not finite")
    size = float(np.mean(np.diag(matrix))) or 1.0
    jitter = 0.0
    while True:
        try:
            lower: FloatArray = cholesky(matrix + jitter * size * np.eye(len(matrix)), lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            jitter = max(_FIRST_JITTER, 10.0 * jitter)
            if jitter > _LAST_JITTER:
                raise
        else:
            return lower


def _solve(lower: FloatArray, right: FloatArray) -> FloatArray:
    half = solve_triangular(lower, right, lower=True, check_finite=False)
    solved: FloatArray = solve_triangular(lower, half, lower=True, trans=1, check_finite=False)
    return solved
