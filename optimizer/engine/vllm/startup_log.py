"""What a vLLM log says of the engine's memory. Matches on message text alone; prefixes vary between processes."""

from __future__ import annotations

import re
from dataclasses import dataclass

_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_KV_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")
_CPU_REQUESTED = re.compile(r"with ([\d.]+) GiB requested memory")
_KV_AVAILABLE = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_ENGINE_INIT = re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s")


@dataclass(frozen=True, slots=True)
class StartupFacts:
    """What the start-up log told; None where it was silent.

    Attributes:
        kv_cache_tokens: KV pool, in tokens.
        max_concurrency: Requests of the longest context that fit into the pool at once.
        requested_memory_gib: Memory the CPU worker took its fraction as, weights and overhead included.
        available_kv_gib: Memory the GPU worker found for the KV pool.
        engine_init_s: Profiling, KV pool and graph capture.
    """

    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    requested_memory_gib: float | None = None
    available_kv_gib: float | None = None
    engine_init_s: float | None = None


def startup_facts(log: str) -> StartupFacts:
    """Read the facts out of a log, or of its beginning."""

    def number(pattern: re.Pattern[str]) -> float | None:
        match = pattern.search(log)
        return float(match.group(1).replace(",", "")) if match else None

    tokens = number(_KV_TOKENS)
    return StartupFacts(
        kv_cache_tokens=None if tokens is None else int(tokens),
        max_concurrency=number(_KV_CONCURRENCY),
        requested_memory_gib=number(_CPU_REQUESTED),
        available_kv_gib=number(_KV_AVAILABLE),
        engine_init_s=number(_ENGINE_INIT),
    )
