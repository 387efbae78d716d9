"""What one more run may settle."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from optimizer.tuning.gp.encoding import Encoding
from optimizer.tuning.gp.outlook import outlook


@pytest.fixture
def expected(space, seen_as):
    settings = [({"max-num-seqs": seqs}, (1.0, excess)) for seqs, excess in ((16, -0.5), (64, -0.04), (256, 0.3))]
    return outlook([seen_as(n, params, result) for n, (params, result) in enumerate(settings)], Encoding(space))


def points(expected, *seqs):
    return expected.encoding.points(expected.encoding.rows([{"max-num-seqs": n} for n in seqs]))


def test_the_chance_to_be_sure_after_a_run_is_that_of_runs_drawn_from_what_is_expected(expected):
    there = points(expected, 16, 32, 64, 128)
    (limit,) = expected.limits.values()
    mean, sd = limit.predict(there)
    rng = np.random.default_rng(0)
    truth = mean + sd * rng.standard_normal((200_000, 4))
    run = truth + np.sqrt(limit.run_variance) * rng.standard_normal(truth.shape)
    gain = sd**2 / (sd**2 + limit.run_variance)
    after = mean + gain * (run - mean)
    sure = norm.cdf(-after / (sd * np.sqrt(1.0 - gain))) >= 0.95
    assert np.exp(expected.log_sure_after_run(there)) == pytest.approx(sure.mean(axis=0), abs=0.01)


def test_it_is_greater_the_farther_below_the_limit(expected):
    far, near, over = np.exp(expected.log_sure_after_run(points(expected, 16, 64, 256)))
    assert far > near > over
