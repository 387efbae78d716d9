"""A model of the engine beneath the processes: a good one helps, a wrong one does no harm."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from optimizer.tuning.gp import fit
from optimizer.tuning.gp.encoding import Encoding
from optimizer.tuning.gp.outlook import VALUE_BELIEFS, outlook
from optimizer.tuning.gp.regression import Data
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
    return float(np.sqrt(np.mean((truth - mean) ** 2))), float(np.mean(density)), expected.value


@pytest.mark.parametrize("count", [1, 3, 8, 16])
def test_a_good_one_predicts_from_few_trials(space, engine, trials, count):
    """It knows the engine up to a factor and what the backend does."""

    def foretold(params):
        value, _ = engine({**params, "attention-backend": "FA", "max-model-len": 4096, "gpu-memory-utilization": 0.95})
        return 0.8 * value + 5.0

    prior = Fake(foretold)
    history, rest = trials[:count], trials[30:]
    with_prior, _, value = error(space, engine, history, rest, prior)
    without, _, _ = error(space, engine, history, rest, None)
    assert value.process.weight > 0.3
    assert with_prior < without


@pytest.mark.parametrize("count", [16, 30])
def test_one_that_is_right_only_in_which_settings_are_alike_helps(space, engine, trials, count):
    """Its figures bend away from the engine's, so that no factor rights them."""
    middle = np.median([trial.value.mean for trial in trials])

    def bent(params):
        return np.exp(1.5 * (engine(params)[0] - middle))

    history, rest = trials[:count], trials[30:]
    with_prior, _, _ = error(space, engine, history, rest, Fake(bent))
    without, _, _ = error(space, engine, history, rest, None)
    assert with_prior < 0.7 * without


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
    with_prior, _, value = error(space, engine, history, rest, Fake(wrong))
    without, _, _ = error(space, engine, history, rest, None)
    assert value.process.weight < 0.1
    assert with_prior < 1.05 * without


def test_one_that_can_tell_of_none_is_as_none(space, engine, trials):
    history, rest = trials[:10], trials[30:]
    *without, value = error(space, engine, history, rest, None)
    for nothing in (np.nan, np.inf):
        *found, with_it = error(space, engine, history, rest, Fake(lambda p, said=nothing: said))
        assert found == without
        assert with_it.forecast is None
    assert error(space, engine, history, rest, Silent())[:2] == tuple(without)
    assert value.forecast is None


def test_one_that_can_tell_of_some_is_left_out_once_another_was_measured(space, engine, trials):
    some = Fake(lambda p: np.nan if p["block-size"] == 16 else engine(p)[0])
    told = [trial for trial in trials if trial.params["block-size"] != 16]
    untold = [trial for trial in trials if trial.params["block-size"] == 16]
    _, _, value = error(space, engine, told[:20], told[20:], some)
    assert value.forecast is not None
    encoding = Encoding(space)
    _, near = value.predict(encoding.points(encoding.rows([told[-1].params])))
    _, far = value.predict(encoding.points(encoding.rows([{**told[-1].params, "block-size": 16}])))
    assert far[0] > near[0]
    *found, value = error(space, engine, [*told[:20], untold[0]], trials[30:], some)
    assert value.forecast is None
    assert found == list(error(space, engine, [*told[:20], untold[0]], trials[30:], None)[:2])


def test_what_is_told_counts_in_every_answer_of_the_posterior(space, engine, trials):
    encoding = Encoding(space)
    value = outlook(trials[:12], encoding, prior=Fake(lambda p: engine(p)[0])).value
    assert value.forecast is not None
    points = encoding.points(encoding.rows([trial.params for trial in trials[30:40]]))
    mean, sd = value.predict(points)
    assert np.diag(value.covariance(points)) == pytest.approx(sd**2, abs=1e-9)
    believed_mean, believed_sd = value.believing(points).predict(points)
    assert believed_mean == pytest.approx(mean, abs=1e-3)
    assert np.all(believed_sd < sd)


def test_what_is_told_is_not_counted_among_the_parameters():
    groups = [slice(at, at + 1) for at in range(41)]
    data = Data(np.eye(41), np.zeros(41), np.ones(41), np.zeros(41))
    assert fit._problem(data, groups, VALUE_BELIEFS, has_prior=True).has_additive
    assert not fit._problem(data, groups, VALUE_BELIEFS, has_prior=False).has_additive
