"""The grey box corrected by trials of an engine that is its own model: what is put in comes out again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from optimizer.core.engine_config import EngineConfig
from optimizer.core.measurement import FloatArray
from optimizer.core.trial import TrialState
from optimizer.tuning.greybox import GreyBox
from optimizer.tuning.greybox.coefficients import prior_of
from optimizer.tuning.greybox.engine_metrics import log_metric, log_metrics
from optimizer.tuning.strategy import Estimate, Seen
from tests.unit.tuning.greybox.made import CARD, facts, steady

SEQS = (4, 8, 16, 24, 32, 48, 64)


def as_flags(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters that are called as their flags are."""
    return dict(params)


def grey_box(metric: str = "output_tokens_per_s", *, maximise: bool = True) -> GreyBox:
    return GreyBox(CARD, as_flags, metric=metric, maximise=maximise)


def trial(number: int, params: dict[str, Any], coefficients: FloatArray, *, metric: str, sign: float = 1.0) -> Seen:
    found = steady(params, coefficients=coefficients)
    logs = {name: float(figures[0]) for name, figures in log_metrics(found, CARD).items()}
    metrics: dict[str, float | None] = {name: math.exp(value) for name, value in logs.items()}
    metrics |= {"preemptions": 0.0, "requests_counted": 100.0}
    excess = log_metric(found, CARD, "p99_e2e_ms")
    assert excess is not None
    return Seen(
        number,
        params,
        TrialState.FEASIBLE,
        value=Estimate(sign * logs[metric], 0.03),
        limits={"p99_e2e_ms": Estimate(float(excess[0]) - math.log(30_000.0), 0.05)},
        metrics=metrics,
    )


@pytest.fixture
def engine() -> FloatArray:
    """An engine that the prior is wrong about: slower steps, faster reading."""
    known = prior_of(CARD)
    return known.mean + np.array([0.8, -0.5, -0.5, -0.6, 0.4, 0.3, 0.0]) * known.sd


def history(engine: FloatArray, metric: str = "output_tokens_per_s", sign: float = 1.0) -> list[Seen]:
    return [
        trial(
            number, {"max-num-seqs": seqs, "enable-prefix-caching": number % 2 == 0}, engine, metric=metric, sign=sign
        )
        for number, seqs in enumerate(SEQS)
    ]


def test_it_finds_the_engine_that_made_the_trials(engine):
    fitted = grey_box().fitted(history(engine))
    assert fitted is not None
    new = [{"max-num-seqs": 40}, {"max-num-seqs": 12, "enable-prefix-caching": False}]
    truth = [steady(params, coefficients=engine) for params in new]
    told = fitted.raw(new)
    for key, metric, offset in (
        ("value", "output_tokens_per_s", 0.0),
        ("p99_e2e_ms", "p99_e2e_ms", math.log(30_000.0)),
    ):
        for row, found in enumerate(truth):
            figures = log_metric(found, CARD, metric)
            assert figures is not None
            assert told[key][row] == pytest.approx(float(figures[0]) - offset, abs=0.05)
    assert fitted.goodness["value"].weight > 0.9


def test_a_minimised_objective_is_higher_where_it_is_better(engine):
    fitted = grey_box("mean_tpot_ms", maximise=False).fitted(history(engine, "mean_tpot_ms", sign=-1.0))
    assert fitted is not None
    few, many = fitted.predict([{"max-num-seqs": 4}, {"max-num-seqs": 64}])["value"]
    assert few > many


def test_nothing_is_told_before_a_trial_was_measured(engine):
    failed = Seen(0, {"max-num-seqs": 8}, TrialState.FAILED, crash=1.0)
    assert grey_box().fitted([]) is None
    assert grey_box().fitted([failed]) is None
    assert grey_box().fitted([failed, *history(engine)]) is not None


def test_an_objective_that_it_does_not_know_is_left_out(engine):
    fitted = grey_box("goodput_requests_per_s").fitted(history(engine))
    assert fitted is not None
    assert set(fitted.predict([{}])) == {"p99_e2e_ms"}


def test_no_settings_are_no_figures(engine):
    fitted = grey_box().fitted(history(engine))
    assert fitted is not None
    assert [told.shape for told in fitted.predict([]).values()] == [(0,), (0,)]


def test_a_launch_that_it_does_not_know_is_not_told(engine):
    fitted = grey_box().fitted(history(engine))
    assert fitted is not None
    told = fitted.predict([{}, {"pipeline-parallel-size": 2}])["value"]
    assert np.isfinite(told).tolist() == [True, False]


def test_what_was_launched_counts_and_not_the_parameters(engine):
    """The baseline has flags that are not in the space."""
    runs = history(engine)
    odd = Seen(
        99,
        {},
        TrialState.FEASIBLE,
        value=runs[0].value,
        metrics=runs[0].metrics,
        config=EngineConfig("vllm", "m", {"max-num-seqs": SEQS[0], "enable-prefix-caching": True}),
    )
    fitted, other = grey_box().fitted([odd, *runs[1:]]), grey_box().fitted(runs)
    assert fitted is not None
    assert other is not None
    assert fitted.fit.coefficients == pytest.approx(other.fit.coefficients)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0, None, 1e300])
def test_absurd_metrics_do_not_break_it(engine, value):
    runs = history(engine)
    names = ["kv_cache_tokens", "mean_ttft_ms", "running_mean", "preemptions", "requests_counted"]
    names += ["prefix_cache_hit_rate", "spec_acceptance_rate"]
    odd = Seen(
        50,
        {"max-num-seqs": 10},
        TrialState.UNDECIDED,
        value=Estimate(3.0, 0.1),
        metrics=dict(runs[0].metrics) | dict.fromkeys(names, value),
    )
    fitted = grey_box().fitted([*runs, odd])
    assert fitted is not None
    for told in fitted.predict([{"max-num-seqs": seqs} for seqs in SEQS]).values():
        assert np.all(np.isfinite(told))


def test_one_trial_that_met_a_neighbour_does_not_spoil_the_rest(engine):
    runs = history(engine)
    slow = runs[3]
    metrics = {name: None if value is None else value * 4.0 for name, value in slow.metrics.items()}
    metrics["output_tokens_per_s"] = (slow.metrics["output_tokens_per_s"] or 0.0) / 4.0
    assert slow.value is not None
    runs[3] = Seen(3, slow.params, slow.state, Estimate(slow.value.mean - math.log(4.0), 0.03), metrics=metrics)
    fitted = grey_box().fitted(runs)
    assert fitted is not None
    truth = log_metric(steady({"max-num-seqs": 40}, coefficients=engine), CARD, "output_tokens_per_s")
    assert truth is not None
    assert fitted.raw([{"max-num-seqs": 40}])["value"][0] == pytest.approx(float(truth[0]), abs=0.25)


def test_identical_results_say_nothing_against_it(engine):
    same = [trial(number, {"max-num-seqs": 16}, engine, metric="output_tokens_per_s") for number in range(5)]
    fitted = grey_box().fitted(same)
    assert fitted is not None
    assert np.all(np.isfinite(fitted.predict([{"max-num-seqs": 4}])["value"]))


def test_a_model_that_is_not_at_hand_still_ranks(engine):
    unknown = facts(
        weights_bytes=None, overhead_bytes=None, kv_bytes_per_token=None, parameters=None, active_parameters=None
    )
    fitted = GreyBox(unknown, as_flags, metric="output_tokens_per_s", maximise=True).fitted(history(engine))
    assert fitted is not None
    told = fitted.raw([{"max-num-seqs": seqs} for seqs in SEQS])["value"]
    assert np.all(np.diff(told) > 0)


def test_acceptance_is_learnt_from_trials(engine):
    guessing: dict[str, Any] = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 4}}
    runs = history(engine)
    chance = 0.8
    rate = sum(chance**place for place in range(1, 5)) / 4
    metrics = dict(steady_metrics(guessing, engine, chance)) | {"spec_acceptance_rate": rate}
    runs.append(Seen(40, guessing, TrialState.FEASIBLE, value=Estimate(7.0, 0.05), metrics=metrics))
    fitted = grey_box().fitted(runs)
    assert fitted is not None
    assert fitted.acceptance["ngram"] == pytest.approx((chance + 0.5 * 0.4) / 1.5, abs=1e-6)


def steady_metrics(params: dict[str, Any], coefficients: FloatArray, acceptance: float) -> dict[str, float]:
    found = steady(params, coefficients=coefficients, acceptance=acceptance)
    return {name: math.exp(float(figures[0])) for name, figures in log_metrics(found, CARD).items()}
