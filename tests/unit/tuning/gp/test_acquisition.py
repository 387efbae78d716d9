"""Expected improvement in log space."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from optimizer.tuning.gp.acquisition import log_expected_improvement


@pytest.mark.parametrize(("mean", "sd", "best"), [(0.0, 1.0, 0.0), (1.0, 0.2, 0.5), (-1.0, 0.4, 0.0), (0.0, 0.5, 2.0)])
def test_it_is_the_integral(mean, sd, best):
    expected, _ = quad(lambda f: (f - best) * norm.pdf(f, mean, sd), best, max(best, mean) + 12 * sd)
    found = log_expected_improvement(np.array([mean]), np.array([sd]), best)
    assert found[0] == pytest.approx(np.log(expected), rel=1e-4)


def test_it_stays_finite_and_rises_with_the_mean_however_unlikely_an_improvement_is():
    mean = -np.logspace(7, -6, 400)
    found = log_expected_improvement(mean, np.ones(400), 0.0)
    assert np.all(np.isfinite(found))
    assert np.all(np.diff(found) > 0.0)


def test_more_doubt_is_worth_more_where_the_mean_is_below_the_best():
    found = log_expected_improvement(np.full(3, -1.0), np.array([0.1, 0.3, 1.0]), 0.0)
    assert np.all(np.diff(found) > 0.0)
