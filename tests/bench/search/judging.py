"""Situations that judge the search. Nothing of it may be tuned on them, and a seed counts once for each claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from optimizer.core.record import ParamValue
from optimizer.search_spaces import GIB, IntParameter, Parameter, Rule, SearchSpace
from optimizer.tuning.greybox.facts import ServingFacts
from tests.bench.search.account import WrongAccount
from tests.bench.search.drawing import around, with_limits
from tests.bench.search.situation import Noise, Situation, rng_of
from tests.bench.search.spaces import capture_size, choice, drafts, graphs, log_int, speculation, switch, utilization
from tests.bench.search.wave_engine import RUNTIME_GIB, Host, Load, Net, WaveEngine

SEEDS = range(1000, 1096)
_BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")


def tail(seed: int) -> Situation:
    """Chat at high load under tight limits on the P99 of TPOT and TTFT."""
    rng = rng_of("tail", seed)
    host = _host(rng, memory_gib=40.0, read_gib_s=1300, tflops=190, frontend_us=around(rng, 180))
    net = Net(16.1, 8.0, 128.0, 32768, 0.03, 0.62, around(rng, 0.8), 1.0)
    load = _load(rng, clients=around(rng, 220), prompt=around(rng, 900, 0.35), output=around(rng, 240, 0.3))
    space: dict[str, Parameter] = {
        "gpu-memory-utilization": utilization(0.68, 0.99),
        "max-model-len": choice(2048, 4096, 8192, 16384, 32768, default=32768),
        "max-num-seqs": log_int(16, 400, 256),
        "max-num-batched-tokens": log_int(512, 24576, 2048),
        "block-size": choice(16, 32, 64, 128, default=16),
        "long-prefill-token-threshold": choice(0, 192, 384, 768, 1536, default=0),
        "attention-backend": choice(*_BACKENDS, default="FLASH_ATTN"),
        "renderer-num-workers": IntParameter(kind="int", low=1, high=6, default=1),
        "async-scheduling": switch(True),
        "cudagraph": graphs(),
        "capture-size": capture_size(16, 512),
        "speculation": speculation("ngram", "eagle"),
        "ngram-tokens": drafts("ngram", 7),
        "eagle-tokens": drafts("eagle", 7),
    }
    baseline = {"max-num-seqs": 48, "max-model-len": 16384}
    factors = {"p99_tpot_ms": around(rng, 0.6, 0.15), "p99_ttft_ms": around(rng, 4.0, 0.5)}
    return _situation("tail", seed, rng, space, baseline, WaveEngine(host, net, load), factors)


def agents(seed: int) -> Situation:
    """Agents with long instructions that each of some dozen kinds has in common."""
    rng = rng_of("agents", seed)
    host = _host(rng, memory_gib=80.0, read_gib_s=2000, tflops=330, frontend_us=around(rng, 90))
    net = Net(28.0, 14.0, around(rng, 190), 65536, 0.025, 0.95, around(rng, 1.1), 1.7)
    shared = float(rng.integers(3500, 6000))
    load = _load(rng, clients=around(rng, 140), prompt=shared + around(rng, 700, 0.4), output=around(rng, 180, 0.3))
    load = replace(load, shared=shared, groups=round(around(rng, 28, 0.4)))
    space: dict[str, Parameter] = {
        "gpu-memory-utilization": utilization(0.60, 0.99),
        "max-model-len": choice(6144, 8192, 12288, 16384, 32768, 65536, default=65536),
        "max-num-seqs": log_int(8, 320, 256),
        "max-num-batched-tokens": log_int(512, 49152, 2048),
        "block-size": choice(16, 32, 64, 128, default=16),
        "enable-prefix-caching": switch(True),
        "kv-cache-dtype": choice("auto", "fp8_e4m3", default="auto"),
        "attention-backend": choice(*_BACKENDS, default="FLASH_ATTN"),
        "async-scheduling": switch(True),
        "cudagraph": graphs(),
        "speculation": speculation("ngram", "eagle"),
        "ngram-tokens": drafts("ngram", 5),
        "eagle-tokens": drafts("eagle", 5),
    }
    baseline = {"max-num-seqs": 24, "max-model-len": 16384, "block-size": 64}
    factors = {"p99_e2e_ms": around(rng, 1.1, 0.1), "p99_tpot_ms": around(rng, 0.75, 0.15)}
    return _situation("agents", seed, rng, space, baseline, WaveEngine(host, net, load), factors)


def scarce(seed: int) -> Situation:
    """A small card: weights take most of it, and most settings do not start or thrash."""
    rng = rng_of("scarce", seed)
    host = _host(rng, memory_gib=15.7, read_gib_s=310, tflops=62, frontend_us=around(rng, 60))
    net = Net(around(rng, 9.4, 0.05), 13.0, 160.0, 32768, 0.03, 0.36, around(rng, 0.35), 0.6)
    load = _load(rng, clients=around(rng, 56), prompt=around(rng, 700, 0.35), output=around(rng, 280, 0.3))
    load = replace(load, shared=around(rng, 220, 0.5), groups=5)
    space: dict[str, Parameter] = {
        "gpu-memory-utilization": utilization(0.72, 0.99),
        "max-model-len": choice(2048, 3072, 4096, 8192, 16384, 32768, default=32768),
        "max-num-seqs": log_int(4, 192, 192),
        "max-num-batched-tokens": log_int(128, 12288, 2048),
        "block-size": choice(8, 16, 32, 64, default=16),
        "enable-prefix-caching": switch(True),
        "kv-cache-dtype": choice("auto", "fp8_e4m3", default="auto"),
        "cpu-offload-gb": choice(0, 0.5, 1, 2, 3, default=0),
        "cudagraph": graphs(),
        "capture-size": capture_size(8, 256),
        "speculation": speculation("ngram", "eagle"),
        "ngram-tokens": drafts("ngram", 5),
        "eagle-tokens": drafts("eagle", 5),
    }
    baseline = {"max-num-seqs": 6, "max-model-len": 4096, "gpu-memory-utilization": 0.9}
    factors = {"p99_e2e_ms": around(rng, 1.15, 0.1), "p99_tpot_ms": around(rng, 0.8, 0.15)}
    return _situation("scarce", seed, rng, space, baseline, WaveEngine(host, net, load), factors)


def documents(seed: int) -> Situation:
    """Questions to long documents, on one device or two: limits on TTFT and on the gap of tokens."""
    rng = rng_of("documents", seed)
    host = _host(rng, memory_gib=80.0, read_gib_s=2600, tflops=450, frontend_us=around(rng, 40))
    host = replace(host, devices=2, link_us=around(rng, 2.5, 1.5))
    net = Net(30.0, 15.0, around(rng, 170), 131072, 0.022, 0.8, around(rng, 1.0), 1.6)
    load = _load(rng, clients=around(rng, 36), prompt=around(rng, 16000, 0.35), output=around(rng, 420, 0.3))
    load = replace(load, shared=around(rng, 2000, 0.5), groups=6)
    space: dict[str, Parameter] = {
        "gpu-memory-utilization": utilization(0.62, 0.99),
        "max-model-len": choice(32768, 49152, 65536, 98304, 131072, default=131072),
        "max-num-seqs": log_int(2, 96),
        "max-num-batched-tokens": log_int(256, 65536, 2048),
        "block-size": choice(16, 32, 64, 128, default=16),
        "long-prefill-token-threshold": choice(0, 256, 512, 1024, 2048, 4096, 8192, default=0),
        "enable-chunked-prefill": switch(True),
        "enable-prefix-caching": switch(True),
        "kv-cache-dtype": choice("auto", "fp8_e4m3", default="auto"),
        "tensor-parallel-size": choice(1, 2, default=1),
        "attention-backend": choice(*_BACKENDS, default="FLASH_ATTN"),
        "speculation": speculation("ngram"),
        "ngram-tokens": drafts("ngram", 6),
    }
    baseline = {"max-num-seqs": 6, "max-model-len": 65536}
    factors = {"p99_ttft_ms": around(rng, 1.3, 0.2), "p99_itl_ms": around(rng, 0.4, 0.25)}
    return _situation("documents", seed, rng, space, baseline, WaveEngine(host, net, load), factors)


def arrivals(seed: int) -> Situation:
    """Requests that come by themselves, at a rate that the card can just serve: the end-to-end time is driven down."""
    rng = rng_of("arrivals", seed)
    host = _host(rng, memory_gib=45.0, read_gib_s=820, tflops=170, frontend_us=around(rng, 120))
    net = Net(15.3, 7.6, 112.0, 32768, 0.03, 0.55, around(rng, 0.7), 0.9)
    load = _load(rng, clients=0, prompt=around(rng, 1500, 0.35), output=around(rng, 260, 0.3))
    load = replace(load, clients=None, rate_per_s=around(rng, 3.2, 0.3), shared=around(rng, 400, 0.5), groups=8)
    space: dict[str, Parameter] = {
        "gpu-memory-utilization": utilization(0.6, 0.99),
        "max-model-len": choice(4096, 8192, 16384, 32768, default=32768),
        "max-num-seqs": log_int(4, 256, 256),
        "max-num-batched-tokens": log_int(512, 24576, 2048),
        "block-size": choice(16, 32, 64, 128, default=16),
        "long-prefill-token-threshold": choice(0, 256, 512, 1024, 2048, default=0),
        "enable-prefix-caching": switch(True),
        "attention-backend": choice(*_BACKENDS, default="FLASH_ATTN"),
        "renderer-num-workers": IntParameter(kind="int", low=1, high=6, default=1),
        "async-scheduling": switch(True),
        "cudagraph": graphs(),
        "speculation": speculation("ngram", "eagle"),
        "ngram-tokens": drafts("ngram", 8),
        "eagle-tokens": drafts("eagle", 8),
    }
    baseline = {"max-num-seqs": 64, "max-model-len": 16384, "max-num-batched-tokens": 4096}
    factors = {"p99_itl_ms": around(rng, 0.8, 0.2), "p99_ttft_ms": around(rng, 1.1, 0.2)}
    engine = WaveEngine(host, net, load)
    return _situation("arrivals", seed, rng, space, baseline, engine, factors, minimised="mean_e2e_ms")


SITUATIONS: Mapping[str, Callable[[int], Situation]] = {
    "tail": tail,
    "agents": agents,
    "scarce": scarce,
    "documents": documents,
    "arrivals": arrivals,
}


def _host(rng: np.random.Generator, *, memory_gib: float, read_gib_s: float, tflops: float, frontend_us: float) -> Host:
    return Host(
        memory_gib=memory_gib,
        devices=1,
        read_gib_s=around(rng, read_gib_s),
        tflops=around(rng, tflops),
        saturating_tokens=around(rng, 220, 0.5),
        base_ms=around(rng, 2.0, 0.4),
        launch_ms=around(rng, 4.5, 0.4),
        seq_us=around(rng, 28, 0.4),
        frontend_us=frontend_us,
        fp8_read=float(rng.uniform(0.6, 1.1)),
    )


def _load(rng: np.random.Generator, *, clients: float, prompt: float, output: float) -> Load:
    return Load(
        clients=round(clients),
        rate_per_s=None,
        prompt=prompt,
        long_prompt=float(rng.uniform(1.6, 2.4)),
        output=output,
        long_output=float(rng.uniform(1.8, 2.6)),
        shared=0.0,
        groups=1,
        first_hit={"ngram": float(rng.uniform(0.3, 0.65)), "eagle": float(rng.uniform(0.45, 0.82))},
        fading=float(rng.uniform(0.72, 0.9)),
    )


def _situation(
    name: str,
    seed: int,
    rng: np.random.Generator,
    parameters: Mapping[str, Parameter],
    baseline: Mapping[str, ParamValue],
    engine: WaveEngine,
    factors: Mapping[str, float],
    *,
    minimised: str | None = None,
) -> Situation:
    unlimited = Situation(
        name=name,
        seed=seed,
        space=SearchSpace(parameters, (Rule.parse("max-num-batched-tokens >= 4 * max-num-seqs"),)),
        baseline=baseline,
        metric=minimised or "output_tokens_per_s",
        maximise=minimised is None,
        limits={},
        engine=engine,
        account=WrongAccount.drawn(rng),
        facts=serving_facts(engine),
        noise=Noise(throughput=float(rng.uniform(0.03, 0.04)), latency=float(rng.uniform(0.04, 0.055))),
    )
    return with_limits(unlimited, factors, rng)


def serving_facts(engine: WaveEngine) -> ServingFacts:
    """What model, card and workload tell of themselves."""
    host, net, load = engine.host, engine.net, engine.load
    prompt_p99, output_p99 = load.prompt * load.long_prompt, load.output * load.long_output
    return ServingFacts(
        prompt_tokens_mean=load.prompt,
        prompt_tokens_p99=prompt_p99,
        output_tokens_mean=load.output,
        output_tokens_p99=output_p99,
        request_tokens_p99=prompt_p99 + load.output,
        longest_request_tokens=round(prompt_p99 + output_p99),
        shared_prefix_tokens=round(load.shared),
        shared_prefixes=load.groups if load.shared > 0.0 else 0,
        in_flight=load.clients,
        rate_per_s=load.rate_per_s,
        weights_bytes=net.weights_gib * GIB,
        overhead_bytes=(RUNTIME_GIB + 1.8 * net.batch_gib + net.graph_gib) * GIB,
        kv_bytes_per_token=net.kv_kib * 1024.0,
        parameters=net.parameters_b * 1e9,
        active_parameters=net.parameters_b * 1e9,
        device_bytes=round(host.memory_gib * GIB),
        model_context_tokens=net.context_tokens,
        default_max_num_seqs=256,
        default_max_num_batched_tokens=2048,
        default_block_size=16,
    )
