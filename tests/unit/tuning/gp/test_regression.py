"""Kernel, posterior and hyperparameters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.spatial.distance import squareform

from optimizer.tuning.gp import fit
from optimizer.tuning.gp.fit import Beliefs, fitted
from optimizer.tuning.gp.kernel import Kernel, PairDistances
from optimizer.tuning.gp.regression import Data, GaussianProcess, robust_cholesky

GROUPS = (slice(0, 1), slice(1, 2), slice(2, 4))


def data(n, *, seed=0, sd=0.05):
    rng = np.random.default_rng(seed)
    features = rng.random((n, 4))
    targets = np.sin(4.0 * features[:, 0]) + 0.3 * features[:, 2] + sd * rng.standard_normal(n)
    return Data(features, targets, np.full(n, sd), np.zeros(n))


def kernel(**changes):
    return replace(Kernel(GROUPS, np.array([0.5, 2.0, 1.0]), 0.4, 0.3, 0.2), **changes)


@pytest.mark.parametrize("additive", [0.0, 0.4])
def test_the_gradient_is_that_of_the_posterior(additive):
    points = replace(data(9), means=np.linspace(-1.0, 1.0, 9))
    problem = fit._problem(points, GROUPS, Beliefs(additive=additive), has_prior=True)
    vector = problem.centre + 0.1 * np.arange(len(problem.centre))
    if additive == 0.0:
        vector[len(GROUPS) + 1] = problem.centre[len(GROUPS) + 1]
    numeric = approx_fprime(vector, lambda at: problem(at)[0], 1e-6)
    free = np.arange(len(vector)) != (len(GROUPS) + 1 if additive == 0.0 else -1)
    assert problem(vector)[1][free] == pytest.approx(numeric[free], rel=1e-3, abs=1e-3)


def test_the_posterior_passes_through_exact_points_and_widens_away_from_them():
    points = replace(data(6), sds=np.zeros(6))
    process = GaussianProcess(kernel(), 1e-10, 0.0, 0.0, points)
    mean, sd = process.predict(points.features, np.zeros(6))
    assert mean == pytest.approx(points.targets, abs=1e-4)
    assert np.all(sd < 1e-3)
    _, far = process.predict(np.full((1, 4), 50.0), np.zeros(1))
    assert far[0] == pytest.approx(np.sqrt(process.kernel.variance), rel=0.2)


def test_a_noisy_point_counts_less_than_an_exact_one():
    features = np.zeros((2, 4))
    process = GaussianProcess(
        kernel(), 1e-6, 0.0, 0.0, Data(features, np.array([1.0, -1.0]), np.array([0.01, 1.0]), np.zeros(2))
    )
    mean, _ = process.predict(features[:1], np.zeros(1))
    assert mean[0] > 0.9


def test_leave_one_out_is_what_leaving_one_out_gives():
    points = data(7)
    process = GaussianProcess(kernel(), 0.01, 0.1, 0.0, points)
    for left in range(7):
        others = np.arange(7) != left
        rest = Data(points.features[others], points.targets[others], points.sds[others], points.means[others])
        mean, sd = replace(process, data=rest).predict(points.features[[left]], np.zeros(1))
        variance = sd[0] ** 2 + 0.01 + points.sds[left] ** 2
        density = -0.5 * (np.log(2 * np.pi * variance) + (points.targets[left] - mean[0]) ** 2 / variance)
        assert process.leave_one_out()[left] == pytest.approx(density, abs=1e-6)


def test_believed_points_change_no_mean_and_leave_nothing_to_learn():
    process = GaussianProcess(kernel(), 1e-4, 0.0, 0.0, data(8))
    there = np.full((1, 4), 0.77)
    believed = process.believing(there, np.zeros(1))
    before, after = process.predict(there, np.zeros(1)), believed.predict(there, np.zeros(1))
    assert after[0] == pytest.approx(before[0], abs=1e-6)
    assert after[1][0] < 0.3 * before[1][0]
    assert process.believing(there[:0], np.zeros(0)) is process


def test_every_pair_finds_its_own_distance_though_each_is_worked_out_once():
    features = np.round(data(12).features, 1)
    lengths = np.array([0.5, 2.0, 1.0])
    distances = PairDistances.of(features, GROUPS)
    assert len(distances.distinct) < distances.squared.size
    summed, slopes = distances.alone(lengths)
    longer = np.exp(1e-6)
    for group, columns in enumerate(GROUPS):
        apart = Kernel((columns,), lengths[[group]], 0.0, 1.0, 0.0)
        one = squareform(apart(features, features), checks=False)
        summed -= one / len(GROUPS)
        moved = squareform(replace(apart, lengths=longer * lengths[[group]])(features, features), checks=False)
        assert slopes[group] == pytest.approx((moved - one) / 1e-6 / len(GROUPS), abs=1e-5)
    assert summed == pytest.approx(np.zeros(66), abs=1e-9)


def test_a_parameter_that_matters_gets_a_shorter_length_than_one_that_does_not():
    process = fitted(data(30), GROUPS, Beliefs())
    assert process.kernel.lengths[0] < process.kernel.lengths[1]
    test = data(50, seed=1, sd=0.0)
    mean, sd = process.predict(test.features, np.zeros(50))
    assert np.sqrt(np.mean((mean - test.targets) ** 2)) < 0.2
    assert np.mean(np.abs(mean - test.targets) < 2.0 * sd) > 0.8


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_identical_results_are_no_difficulty(n):
    points = replace(data(n), targets=np.full(n, 3.0), sds=np.full(n, 1e-9))
    mean, sd = fitted(points, GROUPS, Beliefs()).predict(np.full((1, 4), 0.5), np.zeros(1))
    assert mean[0] == pytest.approx(3.0, abs=0.05)
    assert np.isfinite(sd[0])


def test_the_same_setting_many_times_is_no_difficulty():
    points = Data(np.full((12, 4), 0.3), np.linspace(0.99, 1.01, 12), np.full(12, 1e-6), np.zeros(12))
    mean, sd = fitted(points, GROUPS, Beliefs()).predict(points.features[:1], np.zeros(1))
    assert mean[0] == pytest.approx(1.0, abs=0.01)
    assert 0.0 < sd[0] < 0.03


def test_a_singular_covariance_is_helped_and_a_broken_one_refused():
    lower = robust_cholesky(np.ones((5, 5)))
    assert lower @ lower.T == pytest.approx(np.ones((5, 5)), abs=1e-3)
    with pytest.raises(ValueError, match="not finite"):
        robust_cholesky(np.full((2, 2), np.nan))
