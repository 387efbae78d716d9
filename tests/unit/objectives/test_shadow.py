"""A model beside an engine: the knee that it tells, and how often its verdict is wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from optimizer.core.measurement import FloatArray
from optimizer.core.scoring import Verdict
from optimizer.objectives.shadow import Heard, Shadow, TailLimit
from optimizer.objectives.shadow_engine import FitRows, ShadowEngine, Traffic, fit_rows
from optimizer.objectives.shadow_verdict import Expectation, _Expected, _Share, expectation

ENGINE = ShadowEngine(12, 6e-3, 8e-5, 0.0, 4e-5)
SERVED = 36.0
LIMIT = TailLimit("e2e", 99.0, 1.2)
LONG = 100_000


def traffic(n: int, rate_per_s: float, seed: int) -> Traffic:
    rng = np.random.default_rng(seed)
    return Traffic(np.cumsum(rng.exponential(1.0, n)) / rate_per_s, rng.integers(50, 250, n), rng.integers(10, 70, n))


def endless(rate_per_s: float, requests: int) -> Traffic:
    return traffic(requests, rate_per_s, seed=77)


def heard(engine: ShadowEngine, rate_per_s: float, n: int, seed: int, limits: tuple[TailLimit, ...]) -> Heard:
    sent = traffic(n + 500, rate_per_s, seed)
    known = tuple(engine.latencies_s(sent, limit.metric)[:n] for limit in limits)
    return Heard(sent, known, skipped=n // 20)


def taught(shadow: Shadow, engine: ShadowEngine, rate_per_s: float, n: int, seed: int) -> None:
    some = heard(engine, rate_per_s, n, seed, shadow.limits)
    shadow.learn(rows(engine, some, n), some)


def rows(engine: ShadowEngine, some: Heard, n: int) -> FitRows:
    sent = some.traffic.only(slice(0, n))
    first_s, last_s = (sent.due_s + engine.latencies_s(some.traffic, of)[:n] for of in ("ttft", "e2e"))
    return fit_rows(sent, first_s, last_s)


def p99_s(engine: ShadowEngine, rate_per_s: float) -> float:
    return float(np.percentile(engine.latencies_s(endless(rate_per_s, LONG), "e2e")[2000:], 99.0))


def test_without_a_model_nothing_is_told() -> None:
    shadow = Shadow((LIMIT,), 12, endless)
    assert shadow.knee(SERVED, requests=LONG) is None
    assert shadow.engines() is None
    assert expectation(shadow, 20.0, 0.05, requests=LONG) is None


@pytest.mark.parametrize("seed", range(2))
def test_a_few_hundred_requests_near_the_knee_tell_it(seed: int) -> None:
    shadow = Shadow((LIMIT,), 12, endless)
    taught(shadow, ENGINE, 26.0, 500, seed)
    taught(shadow, ENGINE, 30.0, 1000, seed + 50)
    knee = shadow.knee(SERVED, requests=LONG)
    assert knee is not None
    assert p99_s(ENGINE, knee.rate_per_s) == pytest.approx(LIMIT.limit_s, rel=0.1)
    assert p99_s(ENGINE, 0.97 * knee.rate_per_s) < LIMIT.limit_s < p99_s(ENGINE, 1.03 * knee.rate_per_s)
    assert 0.01 <= knee.error < 0.04


def test_the_model_is_made_as_slow_as_the_latencies_tell() -> None:
    """Its times are fitted to tokens alone; here every answer takes longer than they tell."""
    some = heard(ENGINE, 29.0, 3000, 1, (LIMIT,))
    steps_s = []
    for times in (1.0, 1.3):
        shadow = Shadow((LIMIT,), 12, endless)
        shadow.learn(rows(ENGINE, some, 3000), replace(some, latencies_s=(times * some.latencies_s[0],)))
        engines = shadow.engines()
        assert engines is not None
        steps_s.append(engines[0].step_s)
    assert steps_s[1] > 1.03 * steps_s[0]


def test_of_several_limits_the_first_that_is_used_up_is_the_knee() -> None:
    loose = TailLimit("ttft", 95.0, 60.0)
    for limits in ((LIMIT, loose), (loose, LIMIT)):
        shadow = Shadow(limits, 12, endless)
        taught(shadow, ENGINE, 29.0, 1500, 4)
        knee = shadow.knee(SERVED, requests=20_000)
        assert knee is not None
        assert 28.0 < knee.rate_per_s < 33.0


def test_a_level_with_failures_tells_nothing_of_the_percentile_they_fall_on() -> None:
    shadow = Shadow((LIMIT,), 12, endless)
    some = heard(ENGINE, 29.0, 1000, 4, (LIMIT,))
    shadow.learn(rows(ENGINE, some, 1000), replace(some, latencies_s=(np.full(1000, np.inf),)))
    engines = shadow.engines()
    assert engines is not None
    assert engines[0] == shadow.fitted


# Ways in which an engine may differ from the model, which is made as slow as the engine before it is asked.
REAL = {
    "the same": ENGINE,
    "slower": ENGINE.slower(1.02),
    "crowded": ShadowEngine(12, 5.7e-3, 8e-5, 3e-6, 4e-5),
    "fewer slots": ShadowEngine(11, 5.6e-3, 8e-5, 0.0, 4e-5),
}


@pytest.mark.parametrize("name", REAL)
def test_a_verdict_is_wrong_in_at_most_the_level(name: str) -> None:
    """At a rate at which the true percentile is just the tolerance above the limit, or below it."""
    real, rate, level, runs = REAL[name], 28.0, 0.05, 40
    true_s = p99_s(real, rate)
    for verdict, of_limit in ((Verdict.FEASIBLE, 1.05), (Verdict.INFEASIBLE, 0.95)):
        limit = replace(LIMIT, limit_s=true_s / of_limit)
        shadow = Shadow((limit,), 12, endless)
        taught(shadow, real, 0.98 * rate, 5000, seed=5)
        expected = expectation(shadow, rate, 0.05, requests=LONG)
        assert expected is not None
        said = [expected.verdict(heard(real, rate, 2000, 100 + run, (limit,)), level) for run in range(runs)]
        # Twice the standard error of a share of 5 %.
        assert said.count(verdict) <= level * runs + 2.0 * math.sqrt(level * (1.0 - level) * runs), verdict


def test_away_from_the_limit_it_decides_rightly() -> None:
    rate = 29.0
    long_s = ENGINE.latencies_s(endless(rate, LONG), "e2e")[2000:]
    true_s = float(np.percentile(long_s, 99.0))
    for of_limit, verdict in ((0.8, Verdict.FEASIBLE), (1.3, Verdict.INFEASIBLE)):
        expected = expected_at(replace(LIMIT, limit_s=true_s / of_limit), long_s)
        looks = [expected.verdict(heard(ENGINE, rate, 3000, run, (LIMIT,)), 0.0125) for run in range(20)]
        assert looks.count(verdict) >= 19


def test_of_several_limits_one_that_is_broken_breaks_all() -> None:
    rate = 29.0
    long_s = ENGINE.latencies_s(endless(rate, LONG), "e2e")[2000:]
    true_s = float(np.percentile(long_s, 99.0))
    kept, broken = replace(LIMIT, limit_s=2.0 * true_s), replace(LIMIT, limit_s=0.5 * true_s)
    both = Expectation((*expected_at(kept, long_s).limits, *expected_at(broken, long_s).limits))
    assert both.verdict(heard(ENGINE, rate, 3000, 1, (kept, broken)), 0.05) is Verdict.INFEASIBLE


def expected_at(limit: TailLimit, long_s: FloatArray) -> Expectation:
    shares = (_Share.of(long_s, of * limit.limit_s) for of in (1.05, 0.95))
    return Expectation((_Expected(limit, ENGINE, *shares),))
