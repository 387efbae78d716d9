"""Settings as rows of codes and features: there and back, and what counts as alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.engine_config import EngineConfig
from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter, SearchSpace
from optimizer.tuning.gp.encoding import Encoding


@pytest.fixture
def encoding(space):
    return Encoding(space)


def squared(encoding, one, other):
    features = encoding.features(encoding.rows([one, other]))
    return float(np.sum((features[0] - features[1]) ** 2))


@given(seed=st.integers(0, 2**32 - 1))
def test_drawn_rows_are_settings_of_the_space_and_come_back_as_they_are(seed):
    space = SearchSpace(
        {
            "n": IntParameter(kind="int", low=1, high=100_000, log=True),
            "step": IntParameter(kind="int", low=8, high=64, step=8, when={"on": True}),
            "x": FloatParameter(kind="float", low=1e-4, high=1e-1, log=True),
            "grid": FloatParameter(kind="float", low=0.1, high=0.7, step=0.2),
            "on": BoolParameter(kind="bool"),
            "word": ChoiceParameter(kind="choice", choices=("a", "b", 3)),
        }
    )
    encoding = Encoding(space)
    for row in encoding.drawn(np.random.default_rng(seed), 4):
        params = encoding.params(row)
        space.check(params)
        assert set(params) == set(space.active(params))
        assert encoding.params(encoding.row(params)) == params
        assert encoding.keys(encoding.rows([params])) == encoding.keys(row[None, :])


def test_neighbours_differ_in_one_parameter_and_lie_in_the_space(space, encoding):
    row = encoding.drawn(np.random.default_rng(3), 1)[0]
    for near in encoding.changed(row):
        space.check(encoding.params(near))
        assert np.sum(near != row) == 1


def test_what_a_trial_does_not_set_is_its_default_or_what_was_launched(space, encoding):
    defaults = {name: p.default for name, p in space.parameters.items() if p.default is not None}
    assert encoding.params(encoding.row({})) == {name: defaults[name] for name in space.active(defaults)}
    launched = EngineConfig("vllm", "m", {"block-size": 32, "max-model-len": 5000})
    row = encoding.row({}, launched)
    assert encoding.params(row)["block-size"] == 32
    assert "max-model-len" not in encoding.params(row), "5000 is no value of the space"
    assert np.all(np.isfinite(encoding.features(row[None, :])))


def test_settings_without_a_conditional_parameter_look_alike_in_it(encoding):
    row = encoding.row({"speculation": "none"})
    hidden = [axis.name for axis in encoding.axes].index("num-speculative-tokens")
    for code in (0.0, 1.0, math.nan):
        other = row.copy()
        other[hidden] = code
        assert np.array_equal(encoding.features(row[None, :]), encoding.features(other[None, :]))
        assert encoding.keys(row[None, :]) == encoding.keys(other[None, :])


def test_choices_that_rise_are_near_their_neighbours_and_others_are_all_equally_far(encoding):
    near = squared(encoding, {"max-num-seqs": 16}, {"max-num-seqs": 32})
    far = squared(encoding, {"max-num-seqs": 16}, {"max-num-seqs": 512})
    assert near < far == pytest.approx(1.0)
    fi, triton = ({"attention-backend": name} for name in ("FI", "TRITON"))
    assert squared(encoding, {}, fi) == pytest.approx(squared(encoding, fi, triton)) == pytest.approx(1.0)
    assert squared(encoding, {}, {"enable-prefix-caching": False}) == pytest.approx(1.0)


def test_a_range_is_measured_on_its_own_scale(encoding):
    lower = squared(encoding, {"max-num-batched-tokens": 512}, {"max-num-batched-tokens": 1024})
    upper = squared(encoding, {"max-num-batched-tokens": 8192}, {"max-num-batched-tokens": 16384})
    assert lower == pytest.approx(upper)


def test_parameters_that_a_space_does_not_hold_are_passed_over(encoding):
    assert encoding.params(encoding.row({"unknown": 1})) == encoding.params(encoding.row({}))
