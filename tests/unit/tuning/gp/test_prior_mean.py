"""A model of the engine as the mean of the processes: a good one helps, a wrong one does no harm."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from optimizer.tuning.gp.encoding import Encoding
from optimizer.tuning.gp.outlook import outlook
from optimizer.tuning.strategy import Seen


class Fake:
    """Foretells what a function of the settings says."""

    def __init__(self, value):
        self._value = value

    def fitted(self, history):
        return self

    def predict(self, settings):
        return {"value": np.array([self._value(params) for params in settings])}


class Silent:
    """Can tell nothing."""

    def fitted(self, history):
        return None


@pytest.fixture
def trials(space, engine, seen_as):
    encoding, rng = Encoding(space), np.random.default_rng(1)
    found: list[Seen] = []
    while len(found) < 60:
        params = encoding.params(encoding.drawn(rng, 1)[0])
        result = engine(params)
        if not isinstance(result, float):
            found.append(seen_as(len(found), params, result, 0.02))
    return found


def error(space, engine, history, rest, prior):
    """Root mean square error and log density of the noiseless value of settings that were not seen."""
    encoding = Encoding(space)
    expected = outlook(history, encoding, prior=prior)
    mean, sd = expected.value.predict(encoding.points(encoding.rows([trial.params for trial in rest])))
    truth = np.array([engine(trial.params)[0] for trial in rest])
    density = -0.5 * (np.log(2 * np.pi * sd**2) + (truth - mean) ** 2 / sd**2)
    return float(np.sqrt(np.mean((truth - mean) ** 2))), float(np.mean(density)), expected.value.process.weight


@pytest.mark.parametrize("count", [1, 3, 8, 16])
def test_a_good_one_predicts_from_few_trials(space, engine, trials, count):
    """It knows the engine up to a factor and what the backend does."""

    def foretold(params):
        value, _ = engine({**params, "attention-backend": "FA", "max-model-len": 4096, "gpu-memory-utilization": 0.95})
        return 0.8 * value + 5.0

    prior = Fake(foretold)
    history, rest = trials[:count], trials[30:]
    with_prior, _, weight = error(space, engine, history, rest, prior)
    without, _, _ = error(space, engine, history, rest, None)
    assert weight > 0.3
    assert with_prior < without


@pytest.mark.parametrize("count", [8, 16, 30])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda p: -3.0 * np.log(p["max-num-seqs"]),
        lambda p: 5.0 * ((zlib.crc32(str(sorted(p.items())).encode()) % 1000) / 1000.0),
        lambda p: 40.0 * p["gpu-memory-utilization"] * (p["block-size"] == 32),
    ],
    ids=["opposite", "noise", "nonsense"],
)
def test_a_wrong_one_does_no_harm(space, engine, trials, count, wrong):
    history, rest = trials[:count], trials[30:]
    with_prior, _, weight = error(space, engine, history, rest, Fake(wrong))
    without, _, _ = error(space, engine, history, rest, None)
    assert weight < 0.1
    assert with_prior < 1.05 * without


def test_one_that_cannot_tell_of_some_or_of_all_is_as_none(space, engine, trials):
    history, rest = trials[:10], trials[30:]
    without = error(space, engine, history, rest, None)
    assert error(space, engine, history, rest, Silent()) == without
    assert error(space, engine, history, rest, Fake(lambda p: np.nan)) == without
    some = Fake(lambda p: np.nan if p["block-size"] == 16 else np.inf)
    assert error(space, engine, history, rest, some) == without
