"""What a vLLM log says of the engine's memory. Matches on message text alone; prefixes vary between processes."""

from __future__ import annotations

import re
from dataclasses import dataclass

_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_KV_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")
_REQUESTED = re.compile(r"(?:with |Desired GPU memory utilization is \([\d.]+, )([\d.]+) GiB(?: requested memory|\))")
_KV_AVAILABLE = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_MODEL_LOADING = re.compile(r"Model loading took ([\d.]+) GiB")
_GRAPH_CAPTURE = re.compile(r"Graph capturing finished in \d+ secs, took ([\d.]+) GiB")
_ENGINE_INIT = re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s")


@dataclass(frozen=True, slots=True)
class StartupFacts:
    """What the start-up log told; None where it was silent.

    Attributes:
        kv_cache_tokens: KV pool, in tokens.
        max_concurrency: Requests of the longest context that fit into the pool at once.
        requested_memory_gib: Memory of one device the worker took its fraction as, weights and overhead included. On a
            GPU told once all is ready.
        available_kv_gib: Memory the GPU worker found for the KV pool.
        model_loading_gib: Weights on one GPU, and what loading left beside them.
        graph_capture_gib: CUDA graphs.
        engine_init_s: Profiling, KV pool and graph capture.
    """

    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    requested_memory_gib: float | None = None
    available_kv_gib: float | None = None
    model_loading_gib: float | None = None
    graph_capture_gib: float | None = None
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
        requested_memory_gib=number(_REQUESTED),
        available_kv_gib=number(_KV_AVAILABLE),
        model_loading_gib=number(_MODEL_LOADING),
        graph_capture_gib=number(_GRAPH_CAPTURE),
        engine_init_s=number(_ENGINE_INIT),
    )
