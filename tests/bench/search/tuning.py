"""Situations on which the search may be tuned. What is claimed of it rests on others (`judging`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from optimizer.core.record import ParamValue
from optimizer.search_spaces import GIB, Parameter, Rule, SearchSpace
from optimizer.tuning.greybox.facts import ServingFacts
from tests.bench.search.account import WrongAccount
from tests.bench.search.chunk_engine import CONTEXT_GIB, Card, ChunkEngine, Model, Traffic
from tests.bench.search.drawing import around, with_limits
from tests.bench.search.situation import Situation, rng_of
from tests.bench.search.spaces import capture_size, choice, drafts, graphs, log_int, speculation, switch, utilization

SEEDS = range(0, 24)


def tight_p99(seed: int) -> Situation:
    """Short requests, many at once, and a limit on the P99 of TPOT that the fastest settings break."""
    rng = rng_of("tight-p99", seed)
    card = Card(45.0, 0.4, around(rng, 800), around(rng, 165), around(rng, 2.2), around(rng, 3.2), around(rng, 20))
    model = Model(15.0, 8.0, 128.0, 32768, 32000, 0.5, 1.4, 0.9, around(rng, 20))
    hits = {"ngram": float(rng.uniform(0.30, 0.55)), "eagle": float(rng.uniform(0.55, 0.75))}
    traffic = Traffic(round(around(rng, 260)), around(rng, 800, 0.3), 0.5, around(rng, 220, 0.3), 0.5, 0.0, 1, hits)
    space: dict[str, Parameter] = {
        "gpu-memory-utilization": utilization(0.70, 0.98),
        "max-model-len": choice(2048, 4096, 8192, 16384, 32768, default=32768),
        "max-num-seqs": log_int(8, 512, 256),
        "max-num-batched-tokens": log_int(256, 16384, 2048),
        "block-size": choice(8, 16, 32, 64, 128, default=16),
        "long-prefill-token-threshold": choice(0, 128, 256, 512, 1024, 2048, default=0),
        "enable-prefix-caching": switch(True),
        "cudagraph": graphs(),
        "capture-size": capture_size(16, 1024),
        "async-scheduling": switch(True),
        "speculation": speculation("ngram", "eagle"),
        "ngram-tokens": drafts("ngram", 8),
        "eagle-tokens": drafts("eagle", 8),
    }
    baseline = {"max-num-seqs": 32, "max-model-len": 8192, "gpu-memory-utilization": 0.9}
    factors = {"p99_tpot_ms": around(rng, 0.55, 0.15), "p99_ttft_ms": around(rng, 6.0, 0.6)}
    return _situation("tight-p99", seed, rng, space, baseline, ChunkEngine(card, model, traffic), factors)


def shared_prefix(seed: int) -> Situation:
    """Long prompts of which most is the same within a group: the cache competes with the running requests."""
    rng = rng_of("shared-prefix", seed)
    card = Card(80.0, 0.5, around(rng, 1900), around(rng, 290), around(rng, 2.6), around(rng, 3.6), around(rng, 25))
    model = Model(26.0, 13.0, around(rng, 200), 32768, 40000, 0.9, 1.0, 1.6, around(rng, 26))
    shared = float(rng.integers(2400, 3600))
    hits = {"ngram": float(rng.uniform(0.35, 0.6)), "eagle": float(rng.uniform(0.5, 0.7))}
    traffic = Traffic(
        round(around(rng, 150)), shared + around(rng, 500, 0.3), 0.25, around(rng, 260, 0.3), 0.6, shared,
        round(around(rng, 36)), hits,
    )  # fmt: skip
    space: dict[str, Parameter] = {
        "gpu-memory-utilization": utilization(0.60, 0.99),
        "max-model-len": choice(4096, 6144, 8192, 16384, 32768, default=32768),
        "max-num-seqs": log_int(8, 256, 256),
        "max-num-batched-tokens": log_int(512, 32768, 2048),
        "block-size": choice(16, 32, 64, 128, 256, default=16),
        "enable-prefix-caching": switch(True),
        "kv-cache-dtype": choice("auto", "fp8", default="auto"),
        "long-prefill-token-threshold": choice(0, 256, 512, 1024, 2048, 4096, default=0),
        "cudagraph": graphs(),
        "capture-size": capture_size(16, 512),
        "speculation": speculation("ngram", "eagle"),
        "ngram-tokens": drafts("ngram", 6),
        "eagle-tokens": drafts("eagle", 6),
    }
    baseline = {"max-num-seqs": 16, "max-model-len": 8192, "enable-prefix-caching": False}
    factors = {"p99_e2e_ms": around(rng, 1.15, 0.1), "p99_tpot_ms": around(rng, 0.7, 0.15)}
    return _situation("shared-prefix", seed, rng, space, baseline, ChunkEngine(card, model, traffic), factors)


def memory_starved(seed: int) -> Situation:
    """Weights leave a few GiB: most settings do not start, or preempt."""
    rng = rng_of("memory-starved", seed)
    card = Card(23.6, 0.3, around(rng, 300, 0.2), around(rng, 70), around(rng, 2.4), around(rng, 4.0), around(rng, 22))
    model = Model(around(rng, 15.2, 0.05), 8.0, 128.0, 32768, 32000, 0.42, 1.3, 0.8, around(rng, 16))
    hits = {"ngram": float(rng.uniform(0.3, 0.6)), "eagle": float(rng.uniform(0.5, 0.72))}
    traffic = Traffic(
        round(around(rng, 100)), around(rng, 900, 0.3), 0.5, around(rng, 330, 0.3), 0.6, around(rng, 160, 0.5), 4, hits
    )
    space: dict[str, Parameter] = {
        "gpu-memory-utilization": utilization(0.75, 0.99),
        "max-model-len": choice(2048, 4096, 6144, 8192, 16384, 32768, default=32768),
        "max-num-seqs": log_int(4, 256, 256),
        "max-num-batched-tokens": log_int(256, 16384, 2048),
        "block-size": choice(8, 16, 32, 64, default=16),
        "enable-prefix-caching": switch(True),
        "kv-cache-dtype": choice("auto", "fp8", default="auto"),
        "cpu-offload-gb": choice(0, 1, 2, 4, default=0),
        "cudagraph": graphs(),
        "capture-size": capture_size(8, 512),
        "speculation": speculation("ngram", "eagle"),
        "ngram-tokens": drafts("ngram", 6),
        "eagle-tokens": drafts("eagle", 6),
    }
    baseline = {"max-num-seqs": 8, "max-model-len": 4096, "gpu-memory-utilization": 0.9}
    factors = {"p99_e2e_ms": around(rng, 1.1, 0.1), "p99_tpot_ms": around(rng, 0.75, 0.15)}
    return _situation("memory-starved", seed, rng, space, baseline, ChunkEngine(card, model, traffic), factors)


def long_context(seed: int) -> Situation:
    """Prompts of many thousand tokens stall whoever decodes beside them: limits on TTFT and on the gap of tokens."""
    rng = rng_of("long-context", seed)
    card = Card(
        80.0, 0.5, around(rng, 2900, 0.2), around(rng, 520), around(rng, 2.8), around(rng, 3.4), around(rng, 24)
    )
    model = Model(28.5, 14.0, around(rng, 176), 131072, 36000, 0.85, 1.1, 1.5, around(rng, 30))
    hits = {"ngram": float(rng.uniform(0.45, 0.7))}
    traffic = Traffic(
        round(around(rng, 40)), around(rng, 11000, 0.3), 0.45, around(rng, 450, 0.3), 0.6, around(rng, 1500, 0.5), 3,
        hits,
    )  # fmt: skip
    space: dict[str, Parameter] = {
        "gpu-memory-utilization": utilization(0.65, 0.98),
        "max-model-len": choice(16384, 32768, 49152, 65536, 131072, default=131072),
        "max-num-seqs": log_int(2, 128, 128),
        "max-num-batched-tokens": log_int(256, 65536, 2048),
        "block-size": choice(16, 32, 64, 128, default=16),
        "long-prefill-token-threshold": choice(0, 512, 1024, 2048, 4096, 8192, default=0),
        "enable-prefix-caching": switch(True),
        "enable-chunked-prefill": switch(True),
        "kv-cache-dtype": choice("auto", "fp8", default="auto"),
        "async-scheduling": switch(True),
        "cudagraph": graphs(),
        "speculation": speculation("ngram"),
        "ngram-tokens": drafts("ngram", 8),
    }
    baseline = {"max-num-seqs": 8, "max-model-len": 49152}
    factors = {"p99_ttft_ms": around(rng, 1.5, 0.3), "p99_itl_ms": around(rng, 0.35, 0.2)}
    return _situation("long-context", seed, rng, space, baseline, ChunkEngine(card, model, traffic), factors)


def few_clients(seed: int) -> Situation:
    """A handful of clients who want their answers soon: the end-to-end time is driven down."""
    rng = rng_of("few-clients", seed)
    card = Card(45.0, 0.4, around(rng, 860), around(rng, 180), around(rng, 2.4), around(rng, 4.5), around(rng, 25))
    model = Model(15.0, 8.0, 128.0, 32768, 32000, 0.5, 1.4, 0.9, around(rng, 20))
    hits = {"ngram": float(rng.uniform(0.3, 0.6)), "eagle": float(rng.uniform(0.6, 0.8))}
    traffic = Traffic(
        round(around(rng, 14)), around(rng, 2600, 0.3), 0.4, around(rng, 380, 0.3), 0.5, around(rng, 700, 0.4), 6, hits
    )
    space: dict[str, Parameter] = {
        "gpu-memory-utilization": utilization(0.55, 0.98),
        "max-model-len": choice(4096, 8192, 16384, 32768, default=32768),
        "max-num-seqs": log_int(4, 256, 256),
        "max-num-batched-tokens": log_int(256, 16384, 2048),
        "block-size": choice(8, 16, 32, 64, 128, default=16),
        "long-prefill-token-threshold": choice(0, 256, 512, 1024, 2048, default=0),
        "enable-prefix-caching": switch(True),
        "cudagraph": graphs(),
        "async-scheduling": switch(True),
        "speculation": speculation("ngram", "eagle"),
        "ngram-tokens": drafts("ngram", 10),
        "eagle-tokens": drafts("eagle", 10),
    }
    baseline = {"max-num-seqs": 16, "max-model-len": 16384, "max-num-batched-tokens": 8192}
    factors = {"p99_itl_ms": around(rng, 0.8, 0.15), "p99_ttft_ms": around(rng, 1.2, 0.2)}
    engine = ChunkEngine(card, model, traffic)
    return _situation("few-clients", seed, rng, space, baseline, engine, factors, minimised="mean_e2e_ms")


def trickle(seed: int) -> Situation:
    """Requests come at a rate that slow settings cannot keep up with; the end-to-end time is driven down."""
    rng = rng_of("trickle", seed)
    card = Card(45.0, 0.4, around(rng, 860), around(rng, 180), around(rng, 2.4), around(rng, 4.5), around(rng, 25))
    model = Model(15.0, 8.0, 128.0, 32768, 32000, 0.5, 1.4, 0.9, around(rng, 20))
    hits = {"ngram": float(rng.uniform(0.3, 0.6)), "eagle": float(rng.uniform(0.6, 0.8))}
    prompt, output = around(rng, 1400, 0.3), around(rng, 300, 0.3)
    shared = around(rng, 500, 0.4)
    # Between a third and two thirds of what the card could at best compute.
    rate = float(rng.uniform(0.45, 0.8)) * card.tflops * 1e3 / (2.0 * model.parameters_b * (prompt + 4.0 * output))
    traffic = Traffic(64, prompt, 0.4, output, 0.5, shared, 6, hits, rate)
    space: dict[str, Parameter] = {
        "gpu-memory-utilization": utilization(0.55, 0.98),
        "max-model-len": choice(4096, 8192, 16384, 32768, default=32768),
        "max-num-seqs": log_int(4, 256, 256),
        "max-num-batched-tokens": log_int(256, 16384, 2048),
        "block-size": choice(8, 16, 32, 64, 128, default=16),
        "long-prefill-token-threshold": choice(0, 256, 512, 1024, 2048, default=0),
        "enable-prefix-caching": switch(True),
        "kv-cache-dtype": choice("auto", "fp8", default="auto"),
        "cudagraph": graphs(),
        "async-scheduling": switch(True),
        "speculation": speculation("ngram", "eagle"),
        "ngram-tokens": drafts("ngram", 8),
        "eagle-tokens": drafts("eagle", 8),
    }
    baseline = {"max-num-seqs": 16, "max-model-len": 16384}
    factors = {"p99_itl_ms": around(rng, 0.8, 0.15), "p99_ttft_ms": around(rng, 1.2, 0.2)}
    engine = ChunkEngine(card, model, traffic)
    return _situation("trickle", seed, rng, space, baseline, engine, factors, minimised="mean_e2e_ms")


SITUATIONS: Mapping[str, Callable[[int], Situation]] = {
    "tight-p99": tight_p99,
    "shared-prefix": shared_prefix,
    "memory-starved": memory_starved,
    "long-context": long_context,
    "few-clients": few_clients,
    "trickle": trickle,
}


def _situation(
    name: str,
    seed: int,
    rng: np.random.Generator,
    parameters: Mapping[str, Parameter],
    baseline: Mapping[str, ParamValue],
    engine: ChunkEngine,
    factors: Mapping[str, float],
    *,
    minimised: str | None = None,
) -> Situation:
    model, traffic = engine.model, engine.traffic
    facts = serving_facts(engine.card, model, traffic)
    card = replace(engine.card, fp8_read=float(rng.uniform(0.55, 1.05)), half_tokens=around(rng, 200, 0.6))
    unlimited = Situation(
        name=name,
        seed=seed,
        space=SearchSpace(parameters, (Rule.parse("max-num-batched-tokens >= 2 * max-num-seqs"),)),
        baseline=baseline,
        metric=minimised or "output_tokens_per_s",
        maximise=minimised is None,
        limits={},
        engine=replace(engine, card=card),
        account=WrongAccount.drawn(rng),
        facts=facts,
    )
    return with_limits(unlimited, factors, rng)


def serving_facts(card: Card, model: Model, traffic: Traffic) -> ServingFacts:
    """What model, card and workload tell of themselves."""
    prompt_p99 = traffic.prompt * (1.0 + 2.8 * traffic.prompt_cv)
    output_p99 = traffic.output * (1.0 + 2.8 * traffic.output_cv)
    return ServingFacts(
        prompt_tokens_mean=traffic.prompt,
        prompt_tokens_p99=prompt_p99,
        output_tokens_mean=traffic.output,
        output_tokens_p99=output_p99,
        request_tokens_p99=prompt_p99 + traffic.output,
        longest_request_tokens=round(prompt_p99 + output_p99),
        shared_prefix_tokens=round(traffic.shared),
        shared_prefixes=traffic.groups if traffic.shared > 0.0 else 0,
        in_flight=traffic.clients if traffic.rate_per_s is None else None,
        rate_per_s=traffic.rate_per_s,
        weights_bytes=model.weights_gib * GIB,
        overhead_bytes=(CONTEXT_GIB + 2.0 * model.act_gib_per_ktok) * GIB,
        kv_bytes_per_token=model.kv_kib * 1024.0,
        parameters=model.parameters_b * 1e9,
        active_parameters=model.parameters_b * 1e9,
        device_bytes=round(card.memory_gib * GIB),
        model_context_tokens=model.context_tokens,
        default_max_num_seqs=256,
        default_max_num_batched_tokens=2048,
        default_block_size=16,
    )
