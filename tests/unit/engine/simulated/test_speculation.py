"""Which flags make the engine speculate, and when that pays."""

from __future__ import annotations

import json

import pytest

from optimizer.core.errors import InputError
from optimizer.engine.simulated.command_line import parse_command_line
from optimizer.engine.simulated.scheduler import Scheduler
from optimizer.engine.simulated.settings import resolve_settings
from optimizer.engine.simulated.speculation import Speculation, parse_speculation
from optimizer.engine.simulated.step import SchedulerLimits
from optimizer.engine.simulated.step_time import StepTimeModel
from optimizer.engine.simulated.vllm_log import StartupFailure

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}


def parsed(*words: str) -> Speculation | StartupFailure | None:
    return parse_speculation(parse_command_line(words).flags)


@pytest.mark.parametrize(
    "words",
    [
        ["--speculative-config", json.dumps(NGRAM)],
        ["--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens=4"],
        ["--spec-method", "ngram", "--spec-tokens", "4"],
    ],
)
def test_every_spelling_of_the_same(words):
    found = parsed(*words)
    assert isinstance(found, Speculation)
    assert (found.method, found.tokens) == ("ngram", 4)


def test_a_model_alone_is_a_draft_model():
    found = parsed("--spec-model", "small", "--spec-tokens", "2")
    assert isinstance(found, Speculation)
    assert found.method == "draft_model"


def test_without_the_flags_there_is_none():
    assert parsed("--max-num-seqs", "4") is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--speculative-config", "{"], "cannot be converted"),
        (["--speculative-config", "3"], "cannot be converted"),
        (["--spec-method", "crystal_ball", "--spec-tokens", "1"], "Unsupported speculative method: 'crystal_ball'"),
        (["--spec-method", "ngram", "--spec-tokens", "0"], "num_speculative_tokens must be"),
    ],
)
def test_what_vllm_would_refuse(words, text):
    refused = parsed(*words)
    assert isinstance(refused, StartupFailure)
    assert "1 validation error for SpeculativeConfig" in refused.text
    assert text in refused.text


@pytest.mark.parametrize("share", ["0", "1.5", "often"])
def test_a_senseless_acceptance_is_named(share):
    with pytest.raises(InputError, match="AUTOTUNE_SIM_ACCEPTANCE"):
        resolve_settings(parse_command_line([]), {"AUTOTUNE_SIM_ACCEPTANCE": share})


def tokens_per_s(requests: int, drafted: int) -> float:
    """Throughput of that many requests at once, in the engine's own time."""
    limits = SchedulerLimits(
        max_num_seqs=requests,
        max_num_batched_tokens=4096,
        max_model_len=256,
        block_size=16,
        num_gpu_blocks=17 * requests,
        speculative_tokens=drafted,
        acceptance=0.6,
    )
    scheduler = Scheduler(limits, StepTimeModel(draft_pass_s=20e-6))
    for number in range(requests):
        scheduler.add(str(number), [number] * 8, 128)
    elapsed_s = 0.0
    while scheduler.has_work:
        step = scheduler.schedule()
        elapsed_s += step.duration_s
        scheduler.complete(step)
    return scheduler.stats.generation_tokens / elapsed_s


def test_speculation_pays_for_few_requests_and_costs_for_many():
    assert tokens_per_s(1, 4) > 1.5 * tokens_per_s(1, 0)
    assert tokens_per_s(256, 4) < tokens_per_s(256, 0)
