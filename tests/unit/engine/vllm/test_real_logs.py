"""Whole logs of real vLLM servers that did not start, each told by its cause and its numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from optimizer.core.failure import Blame, FailureKind, MemoryPhase
from optimizer.core.trial import Stage
from optimizer.engine.engine_log import read_log
from optimizer.engine.vllm.failures import classify
from optimizer.engine.vllm.violations import NO_POOL

LOGS = Path(__file__).parents[3] / "data" / "vllm_logs" / "0.32"

TOLD = {
    "unknown_flag": (FailureKind.REJECTED_FLAG, 2, {}, None),
    "bad_choice": (FailureKind.REJECTED_FLAG, 2, {}, None),
    "utilization_above_one": (FailureKind.REJECTED_FLAG, 1, {}, None),
    "unknown_quantization": (FailureKind.REJECTED_FLAG, 1, {}, None),
    "seqs_above_batched_tokens": (
        FailureKind.INVALID_COMBINATION,
        1,
        {"max_num_batched_tokens": 32, "max_num_seqs": 64},
        None,
    ),
    "batched_tokens_below_context": (
        FailureKind.INVALID_COMBINATION,
        1,
        {"max_num_batched_tokens": 64, "max_model_len": 2048},
        None,
    ),
    "context_above_the_models": (
        FailureKind.INVALID_COMBINATION,
        1,
        {"max_model_len": 10_000_000, "max_position_embeddings": 16384},
        None,
    ),
    "heads_not_divisible": (
        FailureKind.INVALID_COMBINATION,
        1,
        {"attention_heads": 16, "tensor_parallel_size": 3},
        None,
    ),
    "odd_block_size": (FailureKind.INVALID_COMBINATION, 1, {"block_size": 17}, None),
    "kv_too_small": (
        FailureKind.KV_CACHE_TOO_SMALL,
        1,
        {
            "max_model_len": 16384,
            "needed_gib": 0.5,
            "available_gib": 0.19,
            "short_gib": 0.31,
            "estimated_max_model_len": 6272,
        },
        math.log(0.5 / 0.19),
    ),
    "nothing_left_for_kv": (
        FailureKind.KV_CACHE_TOO_SMALL,
        1,
        {"left_for_kv_gib": -0.24, "engine_memory_gib": 0.3},
        NO_POOL + math.log(0.54 / 0.3),
    ),
    "kv_bytes_above_host_memory": (
        FailureKind.OUT_OF_MEMORY,
        1,
        {"needed_gib": 400.0, "available_gib": 13.93, "total_gib": 14.96, "short_gib": 386.07},
        math.log(400.0 / 13.93),
    ),
    "not_enough_memory": (
        FailureKind.OUT_OF_MEMORY,
        1,
        {"needed_gib": 14.96, "available_gib": 13.73, "total_gib": 14.96, "short_gib": 1.23},
        math.log(14.96 / 13.73),
    ),
    "port_in_use": (FailureKind.PORT_TAKEN, 1, {}, None),
}


def test_every_log_that_is_kept_is_told():
    assert {file.stem for file in LOGS.glob("*.log")} == set(TOLD)


@pytest.mark.parametrize("name", TOLD)
def test_a_real_log_is_told_by_its_cause_and_numbers(name):
    kind, exit_code, facts, violation = TOLD[name]
    failure = classify(read_log(LOGS / f"{name}.log"), stage=Stage.LAUNCHING, exit_code=exit_code)
    assert failure.kind is kind
    assert failure.blame is (Blame.HOST if kind is FailureKind.PORT_TAKEN else Blame.CONFIG)
    assert failure.facts == pytest.approx(facts)
    assert failure.violation == (None if violation is None else pytest.approx(violation))
    assert failure.evidence
    assert not any("initialization failed" in line or "pid=" in line for line in failure.evidence)


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("unknown_flag", "--invented-flag"),
        ("bad_choice", "--kv-cache-dtype: invalid choice: 'fp9'"),
        ("utilization_above_one", "gpu_memory_utilization"),
        ("unknown_quantization", "nope"),
    ],
)
def test_what_is_refused_is_named(name, flag):
    log = read_log(LOGS / f"{name}.log")
    assert flag in classify(log, stage=Stage.LAUNCHING, exit_code=2).detail


def test_the_phase_of_a_shortage_is_told():
    phases = {}
    for name in ("kv_bytes_above_host_memory", "kv_too_small"):
        phases[name] = classify(read_log(LOGS / f"{name}.log"), stage=Stage.LAUNCHING, exit_code=1).phase
    assert phases == {"kv_bytes_above_host_memory": MemoryPhase.KV_CACHE, "kv_too_small": None}
