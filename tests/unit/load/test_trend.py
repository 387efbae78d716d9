"""Trend tests on series whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from optimizer.load.trend import mann_kendall_z, theil_sen_slope

SERIES = st.lists(st.integers(-20, 20), min_size=3, max_size=30).map(lambda values: np.array(values, dtype=np.float64))


def test_a_climb_is_clear_and_noise_is_not() -> None:
    rng = np.random.default_rng(0)
    assert mann_kendall_z(np.arange(10, dtype=np.float64)) > 3.5
    assert mann_kendall_z(np.ones(10, dtype=np.float64)) == 0.0
    zs = np.array([mann_kendall_z(rng.normal(size=20)) for _ in range(2000)])
    assert (zs > 1.645).mean() == pytest.approx(0.05, abs=0.015)


@given(SERIES)
def test_a_series_read_backwards_has_the_opposite_trend(values: np.ndarray) -> None:
    assert mann_kendall_z(values[::-1]) == pytest.approx(-mann_kendall_z(values))


@given(SERIES)
def test_the_sign_is_that_of_kendalls_tau(values: np.ndarray) -> None:
    if np.unique(values).size > 1:
        tau = stats.kendalltau(np.arange(values.size), values).statistic
        assert mann_kendall_z(values) * tau >= 0.0


def test_the_median_slope_does_not_mind_an_outlier() -> None:
    at = np.arange(12, dtype=np.float64)
    values = 3.0 * at
    values[5] = 1e6
    assert theil_sen_slope(at, values) == pytest.approx(3.0)
