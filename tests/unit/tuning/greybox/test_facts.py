"""Facts from workloads, models and devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from optimizer.load.workload import Workload
from optimizer.tuning.greybox import facts_of
from optimizer.tuning.greybox.lengths import request_lengths
from tests.greybox_on_grid import DEVICE_BYTES, tiny_config, tiny_facts

PLAIN: dict[str, Any] = {
    "name": "made",
    "arrivals": {"kind": "closed_loop", "in_flight": 8},
    "prompt_tokens": 100,
    "output_tokens": 50,
    "warmup": {"requests": 1, "max_s": 1},
    "window": {"min_s": 1, "max_s": 2, "min_requests": 1},
}


def workload(**changes: Any) -> Workload:
    return Workload.model_validate(PLAIN | changes)


def test_the_facts_of_a_closed_loop():
    facts = facts_of(
        workload(prompt_tokens="10-29", shared_prefix={"prefixes": 3, "tokens": 40}), None, device_bytes=None
    )
    assert facts.prompt_tokens_mean == pytest.approx(59.5)
    assert facts.prompt_tokens_p99 == 69.0
    assert (facts.output_tokens_mean, facts.output_tokens_p99) == (50.0, 50.0)
    assert facts.request_tokens_p99 == 119.0
    assert facts.longest_request_tokens == 119
    assert (facts.shared_prefix_tokens, facts.shared_prefixes) == (40, 3)
    assert (facts.in_flight, facts.rate_per_s) == (8, None)
    assert facts.weights_bytes is None


@pytest.mark.parametrize(
    ("arrivals", "rate"),
    [
        ({"kind": "poisson", "rate_per_s": 3.0}, 3.0),
        ({"kind": "constant", "rate_per_s": 2.5}, 2.5),
        ({"kind": "gamma", "rate_per_s": 4.0, "burstiness": 0.5}, 4.0),
        ({"kind": "ramp", "from_rate_per_s": 1.0, "to_rate_per_s": 9.0, "over_s": 10.0}, 9.0),
    ],
)
def test_the_rate_of_an_open_loop(arrivals, rate):
    facts = facts_of(workload(arrivals=arrivals), None, device_bytes=None)
    assert (facts.in_flight, facts.rate_per_s) == (None, rate)


@pytest.mark.parametrize(
    ("lengths", "mean", "p99"),
    [
        (7, 7.0, 7.0),
        ("1-100", 50.5, 100.0),
        ("0.5:10,0.5:30", 20.0, 30.0),
        ({"kind": "lognormal", "median": 100, "sigma": 0.5, "low": 1, "high": 5000}, 113.3, 320.0),
    ],
    ids=str,
)
def test_lengths_have_the_mean_and_the_tail_of_their_distribution(lengths, mean, p99):
    prompts, _, _ = request_lengths(workload(prompt_tokens=lengths))
    assert prompts.mean() == pytest.approx(mean, rel=0.01)
    assert np.percentile(prompts, 99) == pytest.approx(p99, rel=0.02)


def test_a_conversation_repeats_its_earlier_turns():
    facts = facts_of(workload(sessions={"turns": 3}), None, device_bytes=None)
    # 0, 1 and 2 earlier turns of 150 tokens each.
    assert facts.repeated_tokens_mean == pytest.approx(150.0, rel=0.01)
    assert facts.prompt_tokens_mean == pytest.approx(250.0, rel=0.01)


def test_what_a_model_and_a_device_add():
    facts = tiny_facts()
    assert facts.kv_bytes_per_token == 32 * 1024
    assert facts.device_bytes == DEVICE_BYTES
    assert facts.parameters == facts.active_parameters == pytest.approx(2.36e6, rel=0.01)
    assert facts.weights_bytes == pytest.approx(4 * 2.36e6, rel=0.02)
    assert (facts.default_max_num_seqs, facts.default_max_num_batched_tokens) == (128, 2048)
    assert facts.model_context_tokens == 16_384
    assert facts.longest_request_tokens == tiny_config().workload.longest_request_tokens
