"""The histograms: vLLM's edges, and what is counted into them."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import pytest

from optimizer.engine.simulated import histogram
from optimizer.engine.simulated.histogram import Histogram
from optimizer.engine.simulated.request_times import RequestTimes, StepTiming
from optimizer.engine.simulated.step import StepOutput


def test_an_observation_belongs_to_the_first_edge_that_is_not_below_it():
    one = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 7.0):
        one.observe(value)
    assert one.cumulative() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert (one.count, one.total) == (5, 12.0)


@pytest.mark.e2e
def test_edges_are_those_of_the_installed_vllm():
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    # The file alone: importing the package would take seconds.
    theirs = runpy.run_path(str(Path(found.origin).parent / "v1" / "metrics" / "buckets.py"))
    assert theirs["REQUEST_LATENCY_BUCKETS"] == histogram.REQUEST_LATENCY_S
    assert theirs["TIME_TO_FIRST_TOKEN_BUCKETS"] == histogram.TIME_TO_FIRST_TOKEN_S
    assert theirs["INTER_TOKEN_LATENCY_BUCKETS"] == histogram.INTER_TOKEN_LATENCY_S
    assert theirs["ITERATION_TOKENS_BUCKETS"] == histogram.ITERATION_TOKENS
    assert theirs["REQUEST_NUM_PREEMPTIONS_BUCKETS"] == histogram.REQUEST_PREEMPTIONS
    for length in (128, 4096, 10_000, 131_072):
        assert theirs["build_1_2_5_buckets"](length) == list(histogram.request_tokens(length))


def test_one_request_from_its_arrival_to_its_end():
    times = RequestTimes(max_model_len=64)
    times.arrived("r", prompt_tokens=10, now_s=100.0)
    times.step(StepTiming(101.0, 102.0, ["r"], []), [StepOutput("r", [1], False, 4)])
    times.step(StepTiming(102.0, 103.0, [], ["r"]), [])
    times.step(StepTiming(103.0, 105.0, [], []), [StepOutput("r", [2, 3], True, 4)])
    totals = {name: (one.count, one.total) for name, one in times.histograms.items()}
    assert totals == {
        "time_to_first_token_seconds": (1, 2.0),
        "inter_token_latency_seconds": (1, 3.0),
        "request_time_per_output_token_seconds": (1, 1.5),
        "e2e_request_latency_seconds": (1, 5.0),
        "request_queue_time_seconds": (1, 1.0),
        "request_inference_time_seconds": (1, 4.0),
        "request_prefill_time_seconds": (1, 1.0),
        "request_decode_time_seconds": (1, 3.0),
        # Six of the ten prompt tokens were not cached; one token, none, then two.
        "iteration_tokens_total": (3, 7.0 + 0.0 + 2.0),
        "request_num_preemptions": (1, 1.0),
        "request_prompt_tokens": (1, 10.0),
        "request_generation_tokens": (1, 3.0),
        "request_prefill_kv_computed_tokens": (1, 6.0),
    }


def test_an_aborted_request_leaves_no_latency():
    times = RequestTimes(max_model_len=64)
    times.arrived("r", prompt_tokens=10, now_s=0.0)
    times.gone("r")
    times.step(StepTiming(0.0, 1.0, ["r"], ["r"]), [StepOutput("r", [1], True, 0)])
    assert times.histograms["time_to_first_token_seconds"].count == 0
    assert times.histograms["e2e_request_latency_seconds"].count == 0
