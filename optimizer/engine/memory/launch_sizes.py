"""What the flags of a launch say of memory, with vLLM's own defaults where they are silent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from optimizer.core.engine_config import FlagValue, JsonValue
from optimizer.engine.memory.config_fields import CannotPredict, shown

Device = Literal["cpu", "gpu"]

GIB = 1024**3
DEFAULT_UTILIZATION = 0.92
CPU_KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
"""Environment variable: size of a CPU engine's KV pool in GiB."""

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)")
_MOST_TOKENS = 10**9
_MOST_RANKS = 4096
_LARGE_CARD_BYTES = 70 * GIB
_LARGEST_CARD_BYTES = 160 * GIB
_MOST_GRAPH_TOKENS = 512
_CHANGES_THE_MODEL = ("hf-overrides", "hf-config-path", "enable-lora")
_CONTEXT_PARALLEL = ("decode-context-parallel-size", "prefill-context-parallel-size")


@dataclass(frozen=True, slots=True)
class LaunchSizes:
    """The sizes of one launch.

    Attributes:
        utilization: Share of the device's memory.
        kv_pool_bytes: Given size of the KV pool of one GPU, in place of a share.
        kv_pool_blocks: Given number of blocks, whatever memory there is.
        max_model_len: Longest request in tokens; None where vLLM fits it to the pool.
        max_num_seqs: Most requests in one step.
        max_num_batched_tokens: Most tokens in one step.
        block_size: Tokens in one block.
        tensor_parallel: GPUs that a layer is split over.
        pipeline_parallel: GPUs that the layers are spread over.
        expert_ranks: GPUs that the experts of a layer are split over.
        dtype: As given; `auto` for the model's own.
        kv_cache_dtype: As given.
        quantization: As given; None when it is not.
        hybrid_kv_cache: Sliding layers keep no more than their window.
        graph_sizes: How many batch sizes are captured as CUDA graphs; 0 for none.
        compiled: The model is compiled, rather than run eagerly.
        ngram: N-gram speculation is on.
        offload_bytes: Weights of one GPU that stay in the host's memory.
        steps_in_flight: Steps that may be scheduled before the first of them is settled, at the least and as a rule.
        notes: What is not counted.
    """

    utilization: float
    kv_pool_bytes: int | None
    kv_pool_blocks: int | None
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    tensor_parallel: int
    pipeline_parallel: int
    expert_ranks: int
    dtype: str
    kv_cache_dtype: str
    quantization: str | None
    hybrid_kv_cache: bool
    graph_sizes: int
    compiled: bool
    ngram: bool
    offload_bytes: int
    steps_in_flight: tuple[int, int]
    notes: tuple[str, ...] = ()


def launch_sizes(
    flags: Mapping[str, FlagValue],
    env: Mapping[str, str],
    *,
    device: Device,
    device_bytes: int,
    max_position: int,
    latent: bool,
) -> LaunchSizes:
    """The sizes under these flags.

    Args:
        flags: Canonical flag to value.
        env: Environment variables that the engine sees.
        device: What the engine runs on.
        device_bytes: Memory of one device, which picks vLLM's defaults.
        max_position: Longest context of the model, for a launch that sets none.
        latent: The model has latent attention, whose kernels take blocks of their own size.

    Raises:
        CannotPredict: A value is absurd, or a flag changes what is counted.
    """
    reader = _Flags(flags)
    for name in _CHANGES_THE_MODEL:
        if flags.get(name):
            raise CannotPredict(f"--{name} changes the model")
    if any(reader.count(name, most=_MOST_RANKS, default=1) > 1 for name in _CONTEXT_PARALLEL):
        raise CannotPredict("context parallelism splits the KV cache in ways that are not counted")
    tensor = reader.count("tensor-parallel-size", most=_MOST_RANKS, default=1)
    pipeline = reader.count("pipeline-parallel-size", most=_MOST_RANKS, default=1)
    data = reader.count("data-parallel-size", most=_MOST_RANKS, default=1)
    speculation = reader.section("speculative-config")
    max_model_len = _max_model_len(reader, max_position)
    tokens, seqs = _batch(reader, device, device_bytes, max_model_len or max_position, world=tensor * pipeline)
    eager = _eager(reader)
    return LaunchSizes(
        utilization=reader.share("gpu-memory-utilization", default=DEFAULT_UTILIZATION),
        kv_pool_bytes=_kv_pool_bytes(reader, env, device),
        kv_pool_blocks=reader.optional_count("num-gpu-blocks-override", most=_MOST_TOKENS),
        max_model_len=max_model_len,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        block_size=reader.count("block-size", most=65_536, default=_block_size(device, latent=latent)),
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        expert_ranks=tensor * (data if flags.get("enable-expert-parallel") is True else 1),
        dtype=str(flags.get("dtype", "auto")),
        kv_cache_dtype=str(flags.get("kv-cache-dtype", "auto")),
        quantization=None if flags.get("quantization") is None else str(flags["quantization"]),
        hybrid_kv_cache=flags.get("disable-hybrid-kv-cache-manager") is not True,
        graph_sizes=0 if eager or device == "cpu" else len(_graph_sizes(reader, tokens, seqs, speculation)),
        compiled=not eager,
        ngram=str(speculation.get("method", "")).startswith("ngram"),
        offload_bytes=int(reader.number("cpu-offload-gb", default=0.0) * GIB),
        steps_in_flight=(pipeline, pipeline + int(device == "gpu" and flags.get("async-scheduling") is not False)),
        notes=_notes(speculation),
    )


class _Flags:
    """Reads values of flags, which come as numbers, or as people write them."""

    def __init__(self, flags: Mapping[str, FlagValue]) -> None:
        self._flags = flags

    def get(self, name: str) -> FlagValue | None:
        return self._flags.get(name)

    def section(self, name: str) -> Mapping[str, JsonValue]:
        value = self._flags.get(name)
        return value if isinstance(value, dict) else {}

    def optional_count(self, name: str, *, most: int) -> int | None:
        return None if self._flags.get(name) is None else self.count(name, most=most, default=1)

    def count(self, name: str, *, most: int, default: int) -> int:
        value = self.number(name, default=float(default))
        if value != int(value) or not 1 <= value <= most:
            raise CannotPredict(f"--{name} {shown(self._flags.get(name))} is no whole number from 1 to {most}")
        return int(value)

    def share(self, name: str, *, default: float) -> float:
        value = self.number(name, default=default)
        if not 0 < value <= 1:
            raise CannotPredict(f"--{name} {shown(self._flags.get(name))} is no share above 0 and up to 1")
        return value

    def number(self, name: str, *, default: float) -> float:
        value = self._flags.get(name)
        if value is None:
            return default
        if isinstance(value, str) and (match := _NUMBER.fullmatch(value.strip())):
            return float(match[1]) * _SUFFIXES.get(match[2], 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
            raise CannotPredict(f"--{name} {shown(value)} is no number")
        return float(value)


def _max_model_len(reader: _Flags, max_position: int) -> int | None:
    value = reader.get("max-model-len")
    if value in (-1, "-1", "auto"):
        return None
    return reader.count("max-model-len", most=_MOST_TOKENS, default=max_position)


def _batch(reader: _Flags, device: Device, device_bytes: int, max_model_len: int, *, world: int) -> tuple[int, int]:
    """Tokens and requests of a step (vLLM's `EngineArgs.get_batch_defaults` and what follows it)."""
    if device == "cpu":
        tokens, seqs = 2048 * world, 128 * world
    elif device_bytes >= _LARGEST_CARD_BYTES:
        tokens, seqs = 16384, 1024
    else:
        tokens, seqs = (8192, 1024) if device_bytes >= _LARGE_CARD_BYTES else (2048, 256)
    doubled = 2 if reader.get("performance-mode") == "throughput" else 1
    given_tokens = reader.optional_count("max-num-batched-tokens", most=_MOST_TOKENS)
    given_seqs = reader.optional_count("max-num-seqs", most=_MOST_TOKENS)
    seqs = seqs * doubled if given_seqs is None else given_seqs
    tokens = min(tokens * doubled, seqs * max_model_len) if given_tokens is None else given_tokens
    return tokens, min(seqs, tokens)


def _block_size(device: Device, *, latent: bool) -> int:
    """What vLLM takes of its own: `platforms/cpu.py`, and the preference of the attention kernels of a GPU."""
    if device == "cpu":
        return 16 if latent else 128
    return 64 if latent else 16


def _kv_pool_bytes(reader: _Flags, env: Mapping[str, str], device: Device) -> int | None:
    given = reader.optional_count("kv-cache-memory-bytes", most=10**15)
    space = env.get(CPU_KV_SPACE, "")
    if device == "cpu" and space.isdecimal() and 0 < int(space) < 10**6:
        return int(space) * GIB
    return given


def _eager(reader: _Flags) -> bool:
    level = reader.get("optimization-level")
    mode = reader.section("compilation-config").get("mode")
    return reader.get("enforce-eager") is True or level in (0, "0") or mode in (0, "NONE")


def _graph_sizes(reader: _Flags, tokens: int, seqs: int, speculation: Mapping[str, JsonValue]) -> list[int]:
    """Batch sizes captured as CUDA graphs (vLLM's `VllmConfig._set_cudagraph_sizes`)."""
    compilation = reader.section("compilation-config")
    if str(compilation.get("cudagraph_mode", "")).upper() in ("NONE", "0"):
        return []
    given = reader.get("cudagraph-capture-sizes") or compilation.get("cudagraph_capture_sizes")
    if isinstance(given, list):
        return sorted({size for size in given if isinstance(size, int) and size <= tokens})
    guesses = speculation.get("num_speculative_tokens", 0)
    query = 1 + (guesses if isinstance(guesses, int) else 0)
    largest = reader.count(
        "max-cudagraph-capture-size", most=_MOST_TOKENS, default=max(1, min(seqs * query * 2, _MOST_GRAPH_TOKENS))
    )
    largest = min(largest, tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return [size for size in sizes if size <= largest]


def _notes(speculation: Mapping[str, JsonValue]) -> tuple[str, ...]:
    if speculation.get("model") or str(speculation.get("method", "")) in ("draft_model", "eagle", "eagle3", "mtp"):
        return ("the draft model's weights and KV cache are not counted",)
    return ()
