"""Flags of three releases of vLLM, as their own parsers told them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from optimizer.config.flag_check import FlagChecker, FlagProblem
from optimizer.engine.vllm.catalogue import FlagCatalogue

RELEASES = ("0.26.0", "0.32.0", "0.33.0")
TEXTS_COMMAND = (
    "vllm serve meta-llama/Llama-2-13b-chat-hf --gpu-memory-utilization 0.95 --max-num-seqs 256 --max-model-len 4096 "
    "--max-padding-tokens 512 --enable-paged-attention --block-size 16 --prefix-cache-size 0.2 --max-batch-size 64 "
    "--max-wait-time 50 --use-cuda-graph --cuda-graph-sizes 1,2,4,8 --enable-dynamic-memory --speculative-model X "
    "--num-speculative-tokens 5 --speculative-draft-tensor-parallel-size 1 --moe-expert-load-balance --swap-space 16 "
    "--preemption-mode recompute --num-scheduler-steps 8 --use-v2-block-manager --max-seq-len-to-capture 8192 "
    "--cuda-graph-mode full"
)
"""A command as texts have it: four flags of today, and what is old or was never there."""
TODAY_IN_TEXTS = ("--gpu-memory-utilization", "--max-num-seqs", "--max-model-len", "--block-size")


@cache
def release(version: str) -> FlagCatalogue:
    """The flags of one release."""
    file = Path(__file__).parent / "data" / "flag_catalogues" / f"vllm-{version}.json"
    text = file.read_text(encoding="utf-8")
    return FlagCatalogue.model_validate_json(text)


def checker(version: str = "0.32.0") -> FlagChecker:
    """Checks against one release."""
    return FlagChecker(release(version), f"vLLM {version}")


def problems(command: str, version: str = "0.32.0") -> list[FlagProblem]:
    """What is wrong with a command."""
    return checker(version).command(command, where="command")


def has_setting(catalogue: FlagCatalogue, name: str) -> bool:
    """Whether a dotted flag is one of the catalogue, down to its last key as far as keys are known."""
    head, *path = name.split(".")
    flag = catalogue.spelled(f"--{head}")
    keys = None if flag is None else flag.keys
    for key in path:
        if keys is None:
            break
        if key not in keys:
            return False
        keys = keys[key].keys
    return flag is not None
