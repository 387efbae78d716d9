"""What the flags of many launches say of speed, as columns of numbers; vLLM's defaults where they are silent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.core.engine_config import FlagValue, JsonValue
from optimizer.core.measurement import FloatArray
from optimizer.engine.memory.launch_sizes import DEFAULT_UTILIZATION
from optimizer.tuning.greybox.facts import ServingFacts

_MOST = 1e15
_DEFAULT_SEQS = 256.0
_DEFAULT_BATCHED_TOKENS = 2048.0
_DEFAULT_BLOCK = 16.0
_DEFAULT_GRAPH_TOKENS = 512.0
_DRAFTS_BY_LOOKUP = ("ngram", "suffix")


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """Columns of shape (n,), one row a launch.

    Attributes:
        seqs: Most requests in one step.
        batched_tokens: Most tokens in one step.
        block_tokens: Of one KV block.
        caching: 1 where shared prefixes are kept, else 0.
        guesses: Tokens guessed at a time; 0 without speculation.
        drafted: 1 where a model makes the guesses, else 0.
        memory_share: Of the device's memory; NaN where the KV pool is given in bytes.
        pool_bytes: Given size of the KV pool; NaN where a share of memory is.
        kv_scale: Bytes of an element of the KV cache over those of the model's own.
        ranks: GPUs that a layer is split over.
        graph_tokens: Largest step that runs as a CUDA graph; 0 without graphs.
        told: 1 where the model knows how the launch works, else 0.
    """

    seqs: FloatArray
    batched_tokens: FloatArray
    block_tokens: FloatArray
    caching: FloatArray
    guesses: FloatArray
    drafted: FloatArray
    memory_share: FloatArray
    pool_bytes: FloatArray
    kv_scale: FloatArray
    ranks: FloatArray
    graph_tokens: FloatArray
    told: FloatArray


def engine_flags(launches: Sequence[Mapping[str, FlagValue]], facts: ServingFacts) -> EngineFlags:
    """The columns of these launches."""
    columns = len(dataclasses.fields(EngineFlags))
    rows = np.array([_row(flags, facts) for flags in launches], dtype=np.float64).reshape(len(launches), columns)
    return EngineFlags(*(rows[:, column].copy() for column in range(columns)))


def acceptance_key(flags: Mapping[str, FlagValue]) -> str | None:
    """What the acceptance of guesses depends on: the method of speculation; None without any."""
    section = flags.get("speculative-config")
    if not isinstance(section, dict) or not section:
        return None
    return str(section.get("method") or "draft_model")


def _row(flags: Mapping[str, FlagValue], facts: ServingFacts) -> tuple[float, ...]:
    seqs = _number(flags.get("max-num-seqs"), facts.default_max_num_seqs or _DEFAULT_SEQS)
    batched = _number(
        flags.get("max-num-batched-tokens"), facts.default_max_num_batched_tokens or _DEFAULT_BATCHED_TOKENS
    )
    given_pool = _number(flags.get("kv-cache-memory-bytes"), np.nan)
    share = _number(flags.get("gpu-memory-utilization"), DEFAULT_UTILIZATION)
    method, guesses = _speculation(flags)
    return (
        min(seqs, batched),
        batched,
        _number(flags.get("block-size"), facts.default_block_size or _DEFAULT_BLOCK),
        0.0 if flags.get("enable-prefix-caching") is False else 1.0,
        guesses,
        float(guesses > 0 and not method.startswith(_DRAFTS_BY_LOOKUP)),
        np.nan if np.isfinite(given_pool) else share,
        given_pool,
        0.5 if str(flags.get("kv-cache-dtype", "auto")).startswith("fp8") else 1.0,
        _number(flags.get("tensor-parallel-size"), 1.0),
        _graph_tokens(flags, facts, batched),
        float(all(_number(flags.get(f"{kind}-parallel-size"), 1.0) == 1.0 for kind in ("pipeline", "data"))),
    )


def _graph_tokens(flags: Mapping[str, FlagValue], facts: ServingFacts, batched: float) -> float:
    if facts.device == "cpu" or flags.get("enforce-eager") is True:
        return 0.0
    return min(_number(flags.get("max-cudagraph-capture-size"), _DEFAULT_GRAPH_TOKENS), batched)


def _speculation(flags: Mapping[str, FlagValue]) -> tuple[str, float]:
    section = flags.get("speculative-config")
    if not isinstance(section, dict) or not section:
        return "", 0.0
    return str(section.get("method") or "draft_model"), _number(section.get("num_speculative_tokens"), 1.0)


def _number(value: JsonValue, default: float) -> float:
    """A positive number, or the default for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MOST:
        return float(default)
    return float(value)
