"""The engine model: directions that everyone who tunes by hand knows, and figures that are numbers for any flags."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.tuning.greybox.engine_metrics import log_metric
from optimizer.tuning.greybox.engine_model import accepted_guesses
from tests.unit.tuning.greybox.made import CARD, facts, steady

METRICS = (
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "mean_ttft_ms",
    "mean_tpot_ms",
    "p50_e2e_ms",
    "p99_ttft_ms",
    "p99_itl_ms",
    "p95_tpot_ms",
    "p99.9_e2e_ms",
)


def ngram(guesses: int) -> dict[str, Any]:
    return {"speculative-config": {"method": "ngram", "num_speculative_tokens": guesses}}


def test_a_closed_loop_keeps_little_s_law():
    found = steady({"max-num-seqs": 16}, {"max-num-seqs": 64})
    under_way = found.requests_per_s * (found.ttft_s + found.decode_s)
    assert under_way == pytest.approx(64.0, rel=0.02)


def test_more_requests_at_once_give_throughput_and_cost_time_per_token():
    found = steady(*({"max-num-seqs": seqs} for seqs in (4, 16, 64)))
    assert np.all(np.diff(found.requests_per_s) > 0)
    assert np.all(np.diff(found.decode_s) > 0)
    assert np.all(np.diff(found.queue_s) < 0)


def test_a_shared_prefix_is_found_in_whole_blocks_alone():
    found = steady(
        {"enable-prefix-caching": False},
        {"enable-prefix-caching": True, "block-size": 16},
        {"enable-prefix-caching": True, "block-size": 512},
        {"enable-prefix-caching": True, "block-size": 2048},
    )
    off, fine, coarse, never = found.requests_per_s
    assert fine > coarse > off
    assert never == pytest.approx(off)


def test_a_pool_that_is_too_small_preempts_and_costs_throughput():
    large, small = (steady({"max-num-seqs": 64}, pool_tokens=tokens) for tokens in (400_000.0, 12_000.0))
    assert large.preemptions[0] == 0.0
    assert small.preemptions[0] > 0.0
    assert small.requests_per_s[0] < large.requests_per_s[0]
    assert small.running[0] < large.running[0]


def test_guesses_pay_where_they_are_accepted():
    taken, refused = (steady({}, ngram(4), acceptance=chance).requests_per_s for chance in (0.9, 0.02))
    assert taken[1] > 1.3 * taken[0]
    assert refused[1] < refused[0]


def test_accepted_guesses_are_a_geometric_sum():
    chance, guesses = np.array([0.5, 1.0, 0.0]), np.array([2.0, 3.0, 4.0])
    assert accepted_guesses(chance, guesses) == pytest.approx([0.75, 3.0, 0.0], abs=1e-6)


def test_small_steps_delay_decoding_less_and_tiny_ones_starve_it():
    tiny, small, large = (steady({"max-num-batched-tokens": tokens}) for tokens in (64, 256, 8192))
    itl = [log_metric(found, CARD, "p99_itl_ms") for found in (small, large)]
    assert tiny.requests_per_s[0] < 0.6 * large.requests_per_s[0]
    assert small.ttft_s[0] > large.ttft_s[0]
    assert itl[0] is not None
    assert itl[1] is not None
    assert itl[0][0] < itl[1][0]


def test_steps_without_graphs_are_slower():
    with_graphs, without = steady({}, {"enforce-eager": True}).step_s
    assert without > with_graphs


def test_an_open_loop_gives_what_is_asked_for_until_it_queues():
    rates = (0.5, 2.0, 1000.0)
    found = [steady({}, of=facts(in_flight=None, rate_per_s=rate)) for rate in rates]
    assert [one.requests_per_s[0] for one in found[:2]] == pytest.approx(rates[:2])
    assert found[2].requests_per_s[0] < 200.0
    queues = [one.queue_s[0] for one in found]
    assert queues[0] <= queues[1] < queues[2]
    assert found[0].running[0] < found[1].running[0]


def test_an_open_loop_preempts_only_where_its_pool_is_full():
    calm, busy = (steady({}, of=facts(in_flight=None, rate_per_s=rate), pool_tokens=40_000.0) for rate in (0.5, 20.0))
    assert calm.preemptions[0] < 1e-3
    assert busy.preemptions[0] > 0.05


def test_data_sheets_alone_foretell_a_real_h200():
    """tests/data/h200: a 14B shape, 1,500 prompt and 256 output tokens, 128 requests in flight, nothing shared."""
    with (Path(__file__).parents[3] / "data/h200/bound.jsonl").open(encoding="utf-8") as file:
        metrics = json.loads(file.readline())["metrics"]
    of = facts(
        prompt_tokens_mean=1500.0,
        prompt_tokens_p99=1500.0,
        output_tokens_mean=256.0,
        output_tokens_p99=256.0,
        shared_prefix_tokens=0,
        shared_prefixes=0,
        in_flight=128,
        device_bytes=round(139.8 * 2**30),
    )
    found = steady({}, of=of)
    for name in ("output_tokens_per_s", "p99_tpot_ms"):
        told = log_metric(found, of, name)
        assert told is not None
        assert float(told[0]) == pytest.approx(math.log(metrics[name]), abs=0.6), name
    assert found.running[0] == pytest.approx(metrics["running_mean"], rel=0.1)


def test_percentiles_rise():
    found = steady({"max-num-seqs": 32})
    for latency in ("ttft", "tpot", "itl", "e2e"):
        told = [log_metric(found, CARD, f"p{p}_{latency}_ms") for p in (50, 90, 95, 99, 99.9)]
        values = [figures[0] for figures in told if figures is not None]
        assert len(values) == 5
        assert values == sorted(values)


@pytest.mark.parametrize("name", ["goodput_requests_per_s", "p100_e2e_ms", "p0_e2e_ms", "", "p99_e2e"])
def test_what_it_does_not_know_it_does_not_tell(name):
    assert log_metric(steady({}), CARD, name) is None


LAUNCHES = st.fixed_dictionaries(
    {},
    optional={
        "max-num-seqs": st.integers(1, 100_000),
        "max-num-batched-tokens": st.integers(1, 1_000_000),
        "block-size": st.sampled_from((1, 16, 128, 4096)),
        "enable-prefix-caching": st.booleans(),
        "gpu-memory-utilization": st.floats(0.01, 1.0),
        "kv-cache-memory-bytes": st.integers(1, 10**12),
        "kv-cache-dtype": st.sampled_from(("auto", "fp8")),
        "tensor-parallel-size": st.sampled_from((1, 2, 8)),
        "speculative-config": st.fixed_dictionaries(
            {"method": st.sampled_from(("ngram", "eagle")), "num_speculative_tokens": st.integers(1, 16)}
        ),
        "max-cudagraph-capture-size": st.integers(1, 1024),
        "enforce-eager": st.booleans(),
        "max-model-len": st.one_of(st.integers(1, 10**7), st.just("auto")),
    },
)


@settings(max_examples=80)
@given(
    launch=LAUNCHES,
    prompt=st.floats(1.0, 1e6),
    output=st.floats(1.0, 1e5),
    shared=st.integers(0, 10_000),
    load=st.one_of(st.tuples(st.integers(1, 5000), st.none()), st.tuples(st.none(), st.floats(1e-3, 1e4))),
    device=st.sampled_from(("gpu", "cpu")),
)
def test_figures_are_numbers_for_any_flags_and_traffic(launch, prompt, output, shared, load, device):
    prompt = max(prompt, float(shared))
    of = facts(
        prompt_tokens_mean=prompt,
        prompt_tokens_p99=2.0 * prompt,
        output_tokens_mean=output,
        output_tokens_p99=2.0 * output,
        shared_prefix_tokens=shared,
        in_flight=load[0],
        rate_per_s=load[1],
        device=device,
    )
    found = steady(launch, of=of)
    for name in METRICS:
        told = log_metric(found, of, name)
        assert told is not None
        assert np.all(np.isfinite(told)), name
