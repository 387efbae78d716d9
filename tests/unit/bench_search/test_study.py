import math

import pytest

from optimizer.tuning.prescreen import misfit_of
from tests.bench.search import replay, tuning
from tests.bench.search.drawing import random_params
from tests.bench.search.setups import SETUPS, predicted
from tests.bench.search.situation import rng_of
from tests.bench.search.study import run_study


@pytest.mark.parametrize("strategy", ["random", "tpe", "one-at-a-time", "grid"])
def test_a_study_is_the_same_twice_and_says_what_its_settings_truly_are(strategy):
    situation = tuning.SITUATIONS["memory-starved"](1)
    one, same = (run_study(situation, strategy, trials=12, optimum=500.0, digest="") for _ in range(2))
    assert (one.states, one.best_launched) == (same.states, same.best_launched)
    assert len(one.states) == one.marks[12].launches == 12
    assert one.marks[12].crashes == one.states.count("x")
    assert set(one.marks) == {10, 12}
    for mark in one.marks.values():
        for pick in (mark.best, mark.recommended):
            assert pick is None or pick.value == situation.value(situation.truth(pick.params))


@pytest.mark.parametrize("strategy", sorted(set(SETUPS) - {"botorch", "optuna-gp", "optuna-gp+recipe"}))
def test_every_setup_makes_a_study(strategy):
    row = run_study(tuning.SITUATIONS["few-clients"](2), strategy, trials=5, optimum=1.0, digest="")
    assert len(row.states) == 5
    assert row.marks[5].ask_s <= row.marks[5].ask_s_max


def test_the_prescreen_errs_but_rarely_rejects_what_starts():
    rejected, crashing, wrongly = 0, 0, 0
    for seed in range(3):
        situation = tuning.SITUATIONS["memory-starved"](seed)
        for at in range(80):
            params = random_params(situation, rng_of("screen", at))
            lacks = situation.engine.footprint(situation.flags(params)).pool_tokens
            starts = lacks >= situation.engine.footprint(situation.flags(params)).context_tokens
            misfit = misfit_of(predicted(situation, params))
            rejected += misfit is not None
            crashing += not starts
            wrongly += misfit is not None and starts
    assert 0.5 * crashing < rejected <= crashing + wrongly
    assert wrongly <= 0.05 * 240


def test_leaving_an_ingredient_out_leaves_the_others():
    whole = SETUPS["gp"]
    for name in ("flips", "first", "prescreen", "prior", "memory"):
        without = SETUPS[f"gp/no-{name}"]
        parts = [part for part in ("flips", "first", "prescreen", "prior", "memory") if not getattr(without, part)]
        assert parts == [name]
        assert without.strategy == whole.strategy


def test_the_grid_answers_with_what_was_measured():
    means = replay.measured_means()
    assert len(means) == 3 * 2 * 2 * 2 * 2
    situation = replay.tiny_cpu_grid(2000)
    params = {
        "max-num-seqs": 32, "enable-prefix-caching": True, "block-size": 128, "engine-memory": 0.9,
        "max-num-batched-tokens": 512,
    }  # fmt: skip
    assert situation.truth(params).metrics["output_tokens_per_s"] == pytest.approx(461.764, abs=1e-3)
    repeated = {**params, "block-size": 32, "engine-memory": 1.7, "max-num-batched-tokens": 2048}
    mean = situation.truth(repeated).metrics["output_tokens_per_s"]
    assert mean == pytest.approx(math.exp(sum(map(math.log, (632, 668, 581, 623))) / 4), rel=2e-3)


def test_the_grid_s_defaults_are_the_spaces_and_its_baseline_keeps_its_own_limit():
    situation = replay.tiny_cpu_grid(2000)
    parameters = situation.space.parameters
    defaults = {name: p.default for name, p in parameters.items() if p.default is not None}
    assert len(defaults) == len(parameters)
    assert situation.truth({}) == situation.truth(defaults)
    assert situation.excess(situation.truth(situation.baseline)) == pytest.approx(0.0)


def test_replayed_noise_is_that_of_the_repeats():
    residuals = replay.residuals()
    assert len(residuals) == 16
    shifts = [residual["output_tokens_per_s"] for residual in residuals]
    assert sum(shifts) == pytest.approx(0.0, abs=1e-9)
    assert 0.05 < math.sqrt(sum(shift**2 for shift in shifts) / len(shifts)) < 0.2
