"""The capacity objective: each trial was measured at the rate that it serves within the limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from optimizer.core.measurement import FloatArray
from optimizer.core.trial import TrialState
from optimizer.tuning.greybox import GreyBox
from optimizer.tuning.greybox.capacity import log_capacity
from optimizer.tuning.greybox.coefficients import prior_of
from optimizer.tuning.greybox.engine_metrics import log_metric, log_metrics
from optimizer.tuning.greybox.engine_model import Behaviour, saturated_rate, steady_state
from optimizer.tuning.strategy import Estimate, Params, Seen
from tests.unit.tuning.greybox.made import CARD, facts, flags

OPEN = facts(in_flight=None, rate_per_s=1.0)
LIMITS = {"p99_e2e_ms": 25_000.0, "p99_ttft_ms": 2_000.0}
CONSTANTS = {name: -math.log(limit) for name, limit in LIMITS.items()}
POOL = np.array([150_000.0])
BEHAVIOUR = Behaviour(OPEN, np.array([0.5]), 0.0, 1.0)


def capacity(params: dict[str, Any], coefficients: FloatArray, constants: dict[str, float] = CONSTANTS) -> float:
    return float(log_capacity(coefficients, flags(params, of=OPEN), POOL, BEHAVIOUR, constants)[0])


def trial(number: int, params: dict[str, Any], coefficients: FloatArray) -> Seen:
    rate = capacity(params, coefficients)
    columns = flags(params, of=OPEN)
    found = steady_state(coefficients, columns, POOL, BEHAVIOUR, np.array([math.exp(rate)]))
    metrics: dict[str, float | None] = {
        name: math.exp(float(told[0])) for name, told in log_metrics(found, OPEN).items()
    }
    metrics["kv_cache_tokens"] = float(POOL[0])
    limits = {}
    for name, limit in LIMITS.items():
        told = log_metric(found, OPEN, name)
        assert told is not None
        limits[name] = Estimate(float(told[0]) - math.log(limit), 0.05)
    return Seen(number, params, TrialState.FEASIBLE, value=Estimate(rate, 0.03), limits=limits, metrics=metrics)


@pytest.fixture
def engine() -> FloatArray:
    known = prior_of(CARD)
    return known.mean + np.array([0.5, -0.3, -0.4, -0.5, 0.4, 0.2, 0.0]) * known.sd


def test_at_the_capacity_the_tightest_limit_is_met(engine):
    params = {"max-num-seqs": 32}
    rate = math.exp(capacity(params, engine))
    found = steady_state(engine, flags(params, of=OPEN), POOL, BEHAVIOUR, np.array([rate]))
    excess = [
        float(told[0]) + constant
        for name, constant in CONSTANTS.items()
        if (told := log_metric(found, OPEN, name)) is not None
    ]
    assert max(excess) == pytest.approx(0.0, abs=0.1)


def test_no_capacity_is_above_what_the_saturated_engine_serves(engine):
    params = {"max-num-seqs": 16}
    loose = dict.fromkeys(LIMITS, -50.0)
    most = float(saturated_rate(engine, flags(params, of=OPEN), POOL, BEHAVIOUR)[0])
    assert 0.9 * most < math.exp(capacity(params, engine, loose)) < most
    assert capacity(params, engine, {}) == pytest.approx(capacity(params, engine, loose))


def test_tighter_limits_give_less(engine):
    rates = [
        capacity({}, engine, {"p99_e2e_ms": -math.log(limit)}) for limit in (1.0, 1e3, 12_000.0, 20_000.0, 60_000.0)
    ]
    assert rates == sorted(rates)
    assert len(set(rates)) == len(rates)


def test_it_foretells_the_capacity_of_new_settings(engine):
    known = [{"max-num-seqs": seqs, "enable-prefix-caching": seqs % 3 == 0} for seqs in (6, 8, 12, 16, 24, 32, 48, 64)]
    box = GreyBox(CARD, dict, metric="capacity_requests_per_s", maximise=True)
    fitted = box.fitted([trial(number, params, engine) for number, params in enumerate(known)])
    assert fitted is not None
    new: list[Params] = [{"max-num-seqs": 20, "enable-prefix-caching": caching} for caching in (True, False)]
    told = fitted.predict(new)
    assert set(told) == {"value"}
    assert told["value"] == pytest.approx([capacity(params, engine) for params in new], abs=0.12)
    assert fitted.goodness["value"].weight > 0.8


def test_a_trial_without_a_rate_is_left_out(engine):
    box = GreyBox(CARD, dict, metric="capacity_requests_per_s", maximise=True)
    ended = trial(0, {}, engine)
    assert box.fitted([Seen(0, {}, ended.state, metrics=dict(ended.metrics) | {"requests_per_s": None})]) is None
    assert box.fitted([ended]) is not None
