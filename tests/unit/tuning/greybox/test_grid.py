"""The grey box on 76 real runs: it ranks from the baseline alone, and knows when it is wrong."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from optimizer.tuning.greybox import GreyBox
from optimizer.tuning.greybox.engine_flags import engine_flags
from tests.greybox_on_grid import (
    foretelling,
    is_baseline,
    measured_runs,
    seen_run,
    tiny_facts,
    tiny_flags,
    tiny_grey_box,
)

KEYS = ("value", "p95_e2e_ms", "p99_e2e_ms", "p99_tpot_ms", "p99_ttft_ms")


@pytest.mark.parametrize(("others", "least_rank", "most_residual"), [(0, 0.8, 0.3), (4, 0.82, 0.27), (10, 0.84, 0.24)])
def test_it_ranks_real_runs(others, least_rank, most_residual):
    found = foretelling(others, draws=4)
    assert set(found) == set(KEYS)
    for key, one in found.items():
        assert one.rank_correlation > least_rank, key
        assert one.residual_sd < most_residual, key
        assert one.weight > 0.4, key


def test_all_runs_together_leave_little_more_than_their_noise():
    fitted = tiny_grey_box().fitted(measured_runs())
    assert fitted is not None
    assert fitted.goodness["value"].weight > 0.85
    assert fitted.goodness["value"].rank_correlation > 0.85
    assert fitted.goodness["value"].residual_sd < 0.16


def test_the_pool_is_learnt_from_what_engines_reported():
    fitted = tiny_grey_box().fitted(measured_runs()[:5])
    assert fitted is not None
    runs = measured_runs()
    launches = [tiny_flags()(run.params) for run in runs]
    told = fitted.pool.tokens(engine_flags(launches, tiny_facts()))
    reported = np.array([run.metrics["kv_cache_tokens"] for run in runs], dtype=float)
    assert np.max(np.abs(told / reported - 1.0)) < 0.08


def test_shuffled_results_take_its_weight_away():
    """Each setting shows what another one showed: there is nothing to be learnt."""
    runs = measured_runs()
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(len(runs))[:30]
        wrong = [seen_run(row, runs[row].params, runs[other].metrics) for row, other in enumerate(order)]
        fitted = tiny_grey_box().fitted(wrong)
        assert fitted is not None
        for key in KEYS:
            assert fitted.goodness[key].weight < 0.35, (seed, key)


def test_reversed_results_take_all_of_its_weight_away():
    """The best setting shows the worst value: predictions become the same for all settings."""
    runs = measured_runs()[:12]
    mean = float(np.mean([run.value.mean for run in runs if run.value is not None]))
    wrong = [
        dataclasses.replace(run, value=dataclasses.replace(run.value, mean=2.0 * mean - run.value.mean))
        for run in runs
        if run.value is not None
    ]
    fitted = tiny_grey_box().fitted(wrong)
    assert fitted is not None
    assert fitted.goodness["value"].weight == 0.0
    told = fitted.predict([dict(run.params) for run in runs])
    assert np.ptp(told["value"]) == 0.0
    assert np.ptp(told["p99_e2e_ms"]) > 0.1


def test_wrong_facts_cost_weight():
    """A model of other traffic on another machine must not be trusted more than the right one."""
    right = tiny_facts()
    wrong = dataclasses.replace(
        right, prompt_tokens_mean=20_000.0, output_tokens_mean=4000.0, output_tokens_p99=8000.0, shared_prefix_tokens=0
    )
    fitted = GreyBox(wrong, tiny_flags(), metric="output_tokens_per_s", maximise=True).fitted(measured_runs()[:20])
    trusted = tiny_grey_box().fitted(measured_runs()[:20])
    assert fitted is not None
    assert trusted is not None
    assert fitted.goodness["value"].weight < trusted.goodness["value"].weight - 0.1
    assert fitted.goodness["value"].rank_correlation < trusted.goodness["value"].rank_correlation - 0.2


def test_it_is_a_function_of_the_history():
    runs = measured_runs()[:9]
    settings = [dict(run.params) for run in measured_runs()]
    one, other = tiny_grey_box().fitted(runs), tiny_grey_box().fitted(runs)
    assert one is not None
    assert other is not None
    for key, told in one.predict(settings).items():
        assert np.array_equal(told, other.predict(settings)[key])


def test_the_baseline_alone_is_met():
    baseline = next(run for run in measured_runs() if is_baseline(run))
    fitted = tiny_grey_box().fitted([baseline])
    assert fitted is not None
    assert baseline.value is not None
    told = fitted.predict([dict(baseline.params)])
    assert told["value"][0] == pytest.approx(baseline.value.mean)
    assert told["p99_e2e_ms"][0] == pytest.approx(baseline.limits["p99_e2e_ms"].mean)
