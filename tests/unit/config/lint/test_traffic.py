"""A workload as numbers."""

from __future__ import annotations

import pytest

from optimizer.config.lint import lint
from optimizer.config.lint.traffic import traffic_of
from tests.unit.config.lint.subjects import command, traffic


def test_fixed_lengths_are_what_they_are():
    seen = traffic_of(traffic(in_flight=7, prefix=100, prompt=50, output=25))
    assert (seen.in_flight, seen.prefixes, seen.shared_prefix_tokens) == (7, 1, 100)
    assert (seen.median_prompt_tokens, seen.mean_prompt_tokens, seen.mean_output_tokens) == (50, 50, 25)
    assert seen.p99_request_tokens == seen.longest_request_tokens == 175


def test_the_p99_is_that_of_prompt_and_answer_together():
    lengths = {"kind": "uniform", "low": 1, "high": 100}
    seen = traffic_of(
        traffic().model_validate({**traffic().model_dump(), "prompt_tokens": lengths, "output_tokens": lengths})
    )
    # The sum of two uniform lengths exceeds 200 - x with probability x^2 / 20000, which is 1 % at x = 14.
    assert seen.p99_request_tokens == pytest.approx(186, abs=4)
    assert seen.longest_request_tokens == 200


@pytest.mark.parametrize("cap", [None, 32])
def test_an_open_loop_has_no_more_in_flight_than_its_cap(cap):
    arrivals = {"kind": "poisson", "rate_per_s": 8, "max_in_flight": cap}
    workload = traffic().model_validate({**traffic().model_dump(), "arrivals": arrivals})
    assert traffic_of(workload).in_flight == cap
    fired = {finding.rule for finding in lint(command("--max-num-seqs 4096", workload=workload))}
    assert ("seqs-above-in-flight" in fired) is (cap is not None)


@pytest.mark.parametrize(
    ("prefix", "block", "computed"), [(0, 16, 50), (96, 16, 50), (100, 16, 54), (15, 16, 65), (100, None, 150)]
)
def test_only_whole_blocks_of_a_prefix_are_not_computed_again(prefix, block, computed):
    assert traffic_of(traffic(prefix=prefix)).computed_prompt_tokens(50, block) == computed
