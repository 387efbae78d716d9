"""For every rule: subjects in which it fires, with words of its message, and subjects in which it must not."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from optimizer.config.lint import LintSubject
from optimizer.search_spaces import GIB
from tests.unit.config.lint.subjects import (
    FP8,
    H200,
    MOE,
    NGRAM,
    choice,
    command,
    number,
    shape,
    space,
    switch,
    traffic,
)


class Case(NamedTuple):
    """A subject; `words` are part of the finding's message, None when the rule must be silent."""

    rule: str
    subject: LintSubject
    words: str | None


MEMORY = (
    Case("utilization-too-high", command("--gpu-memory-utilization 0.99"), "is 0.99: 1 % of the memory is left"),
    Case("utilization-too-high", command("--gpu-memory-utilization 0.97", device_memory_bytes=80 * GIB), "(2.4 GiB)"),
    Case(
        "utilization-too-high",
        space({"gpu-memory-utilization": number("float", 0.8, 0.99)}),
        "the range of gpu-memory-utilization goes up to 0.99",
    ),
    Case(
        "utilization-too-high",
        space({"m": number("float", 1, 99, unit="GiB", flag="gpu-memory-utilization")}, device_memory_bytes=100 * GIB),
        "goes up to 0.99",
    ),
    Case("utilization-too-high", command("--gpu-memory-utilization 0.96"), None),
    Case("utilization-too-high", command(""), None),
    Case("utilization-too-high", command("--gpu-memory-utilization 0.99 --kv-cache-memory-bytes 8G"), None),
    Case("utilization-too-high", space({"m": number("float", 1, 99, unit="GiB", flag="gpu-memory-utilization")}), None),
    Case("context-cap-too-generous", command("--max-model-len 32768", workload=traffic()), "at most 640 tokens"),
    Case(
        "context-cap-too-generous",
        command("--max-model-len 32768", workload=traffic(), shape=shape()),
        "the KV cache of one such request is 6.0 GiB",
    ),
    Case(
        "context-cap-too-generous",
        space({"max-model-len": choice(8192, 32768)}, workload=traffic()),
        "the range of max-model-len goes down to 8192",
    ),
    Case("context-cap-too-generous", space({"max-model-len": choice(2048, 32768)}, workload=traffic()), None),
    Case("context-cap-too-generous", command("--max-model-len 2880", workload=traffic()), None),
    Case("context-cap-too-generous", command("--max-model-len 32768"), None),
    Case("context-cap-below-longest-request", command("--max-model-len 512", workload=traffic()), "up to 640 tokens"),
    Case(
        "context-cap-below-longest-request",
        space({"max-model-len": choice(256, 512)}, workload=traffic()),
        "goes up to 512",
    ),
    Case("context-cap-below-longest-request", command("--max-model-len 640", workload=traffic()), None),
    Case("context-cap-below-longest-request", command("--max-model-len -1", workload=traffic()), None),
    Case("context-cap-below-longest-request", space({"max-model-len": choice(512, 1024)}, workload=traffic()), None),
    Case(
        "weights-offloaded-under-latency-limit",
        command("--cpu-offload-gb 10", slos=["p99_e2e_ms=800"], objective="throughput"),
        "10 GiB cross the bus in every step, which takes at least 170 ms",
    ),
    Case("weights-offloaded-under-latency-limit", command("--offload-group-size 8"), "offload-group-size is 8"),
    Case("weights-offloaded-under-latency-limit", command("--cpu-offload-gb 0"), None),
    Case("weights-offloaded-under-latency-limit", command("--cpu-offload-gb 10", objective="throughput"), None),
)

BATCHING = (
    Case(
        "batched-tokens-below-seqs",
        command("--max-num-seqs 512 --max-num-batched-tokens 256"),
        "max-num-batched-tokens is 256 and max-num-seqs is 512",
    ),
    Case(
        "batched-tokens-below-seqs",
        command("--max-num-seqs 4096", device_memory_bytes=24 * GIB),
        "max-num-batched-tokens is not set and 2048 by default",
    ),
    Case("batched-tokens-below-seqs", command("--max-num-seqs 4096"), None),
    Case("batched-tokens-below-seqs", command("--max-num-batched-tokens 64"), None),
    Case(
        "batched-tokens-below-seqs",
        space({"max-num-seqs": choice(16, 512), "max-num-batched-tokens": choice(256, 512)}),
        None,
    ),
    # 64 sequences with prompts four times as long as answers need 64 + 256 tokens a step.
    Case(
        "seqs-without-batched-tokens",
        command("--max-num-seqs 64 --max-num-batched-tokens 256", workload=traffic(in_flight=64)),
        "64 running requests take 64 tokens of every step, and 256 more",
    ),
    Case(
        "seqs-without-batched-tokens",
        space({"max-num-seqs": choice(16, 256)}, flags={"max-num-batched-tokens": 256}),
        "256 sequences take 256 tokens of every step",
    ),
    Case(
        "seqs-without-batched-tokens",
        command("--max-num-seqs 64 --max-num-batched-tokens 320", workload=traffic(in_flight=64)),
        None,
    ),
    # A prefix that is kept is not computed again: 64 + 64 tokens a step are left.
    Case(
        "seqs-without-batched-tokens",
        command(
            "--max-num-seqs 64 --max-num-batched-tokens 256", workload=traffic(in_flight=64, prefix=384, prompt=128)
        ),
        None,
    ),
    Case("seqs-without-batched-tokens", command("--max-num-seqs 128 --max-num-batched-tokens 256"), None),
    Case("seqs-without-batched-tokens", command("--max-num-batched-tokens 256"), None),
    Case("seqs-without-batched-tokens", command("--max-num-seqs 512 --max-num-batched-tokens 8192"), None),
    Case(
        "prompt-in-many-chunks",
        command("--max-num-batched-tokens 512", workload=traffic(prompt=4096)),
        "a median prompt of 4096 tokens to compute takes 9 steps",
    ),
    Case("prompt-in-many-chunks", command("--max-num-batched-tokens 1056", workload=traffic(prompt=4096)), None),
    Case(
        "prompt-in-many-chunks",
        command("--max-num-batched-tokens 512", workload=traffic(prompt=4096), slos=["p99_itl_ms=50"]),
        None,
    ),
    Case("prompt-in-many-chunks", command("--max-num-batched-tokens 512"), None),
    Case(
        "prompt-in-many-chunks",
        space({"max-num-batched-tokens": choice(512, 8192)}, workload=traffic(prompt=4096)),
        None,
    ),
    Case("seqs-above-in-flight", command("--max-num-seqs 65", workload=traffic()), "never has more than 32 requests"),
    Case(
        "seqs-above-in-flight",
        space({"max-num-seqs": choice(16, 1024)}, workload=traffic()),
        "the range of max-num-seqs goes up to 1024",
    ),
    Case("seqs-above-in-flight", command("--max-num-seqs 64", workload=traffic()), None),
    Case("seqs-above-in-flight", command("", workload=traffic(), device_memory_bytes=H200), None),
    Case("seqs-above-in-flight", space({"max-num-seqs": choice(16, 1024, default=1024)}, workload=traffic()), None),
    Case("chunked-prefill-turned-off", command("--no-enable-chunked-prefill"), "enable-chunked-prefill is false"),
    Case("chunked-prefill-turned-off", space({"enable-chunked-prefill": switch()}), "allows false"),
    Case("chunked-prefill-turned-off", command("--enable-chunked-prefill"), None),
)

GRAPHS = (
    Case("enforce-eager-left-on", command("--enforce-eager"), "enforce-eager is true"),
    Case("enforce-eager-left-on", command("-O0"), "optimization-level is 0"),
    Case("enforce-eager-left-on", command("--enforce-eager", device="cpu"), None),
    Case("enforce-eager-left-on", command("-O1"), None),
    Case("enforce-eager-left-on", space({"enforce-eager": switch()}), None),
    Case(
        "cudagraph-max-below-seqs",
        command("--max-num-seqs 256 --max-cudagraph-capture-size 128"),
        "a decode step may hold 256 tokens (256 sequences), and the largest captured batch is 128",
    ),
    Case("cudagraph-max-below-seqs", command("--max-num-seqs 64 --cudagraph-capture-sizes 1 8 32"), "batch is 32"),
    Case("cudagraph-max-below-seqs", command("--max-num-seqs 600"), "captures by itself is 512 (1024 on sm100)"),
    Case(
        "cudagraph-max-below-seqs",
        command("--max-num-seqs 200 --spec-method ngram --spec-tokens 3"),
        "a decode step may hold 800 tokens",
    ),
    Case("cudagraph-max-below-seqs", command("--max-num-seqs 512"), None),
    Case("cudagraph-max-below-seqs", command("--max-num-seqs 600 --enforce-eager"), None),
    Case("cudagraph-max-below-seqs", command("--max-num-seqs 600 -cc.cudagraph_mode NONE"), None),
    Case("cudagraph-max-below-seqs", command("--max-num-seqs 600", device="cpu"), None),
    Case("cudagraph-max-below-seqs", command("--max-num-seqs 600", workload=traffic(in_flight=64)), None),
    Case("cudagraph-max-below-seqs", command("", device_memory_bytes=H200), None),
)

PREFIX_CACHE = (
    Case(
        "prefix-not-block-aligned",
        command("--block-size 128", workload=traffic(prefix=192, prompt=32)),
        "the shared prefix of 192 tokens is 1 block of 128 and 64 tokens more",
    ),
    Case("prefix-not-block-aligned", command("", workload=traffic(prefix=15, prompt=32)), "is no block of 16"),
    Case("prefix-not-block-aligned", command("", workload=traffic(prefix=100, prompt=32), device="cpu"), "of 128"),
    Case(
        "prefix-not-block-aligned",
        space({"block-size": choice(128, 256)}, workload=traffic(prefix=192, prompt=32)),
        "64 tokens more",
    ),
    Case("prefix-not-block-aligned", command("--block-size 64", workload=traffic(prefix=192, prompt=32)), None),
    Case("prefix-not-block-aligned", command("", workload=traffic(prefix=1000, prompt=300)), None),
    Case("prefix-not-block-aligned", command("--block-size 128", workload=traffic()), None),
    Case(
        "prefix-not-block-aligned",
        command("--block-size 128 --no-enable-prefix-caching", workload=traffic(prefix=192, prompt=32)),
        None,
    ),
    Case(
        "prefix-not-block-aligned",
        space({"block-size": choice(32, 128)}, workload=traffic(prefix=192, prompt=32)),
        None,
    ),
    Case(
        "prefix-not-block-aligned",
        command("--block-size 1024 --prefix-match-unit 32", workload=traffic(prefix=192, prompt=32)),
        None,
    ),
    Case(
        "prefix-caching-off-with-shared-prefix",
        command("--no-enable-prefix-caching", workload=traffic(prefix=1536)),
        "requests share 1536 tokens: 75 % of all prompt tokens",
    ),
    Case(
        "prefix-caching-off-with-shared-prefix",
        command("--no-enable-prefix-caching", workload=traffic(prefix=15)),
        None,
    ),
    Case("prefix-caching-off-with-shared-prefix", command("--no-enable-prefix-caching", workload=traffic()), None),
    Case("prefix-caching-off-with-shared-prefix", command("", workload=traffic(prefix=1536)), None),
    Case(
        "prefix-caching-off-with-shared-prefix",
        space({"enable-prefix-caching": switch()}, workload=traffic(prefix=1536)),
        None,
    ),
    Case(
        "prefix-caching-without-shared-prefix",
        space({"enable-prefix-caching": switch()}, workload=traffic()),
        "enable-prefix-caching is searched",
    ),
    Case(
        "prefix-caching-without-shared-prefix",
        space({"prefix-caching-hash-algo": choice("sha256", "xxhash")}, workload=traffic()),
        "prefix-caching-hash-algo is searched",
    ),
    Case(
        "prefix-caching-without-shared-prefix",
        space({"enable-prefix-caching": switch()}, workload=traffic(prefix=64)),
        None,
    ),
    Case("prefix-caching-without-shared-prefix", command("--enable-prefix-caching", workload=traffic()), None),
)

SPECULATION = (
    Case(
        "speculation-at-high-concurrency",
        command("--spec-method ngram --spec-tokens 4", workload=traffic(in_flight=33)),
        "33 x (1 + 4 guesses) is 165 tokens a step",
    ),
    Case(
        "speculation-at-high-concurrency",
        command("""--speculative-config '{"model": "org/draft"}' --max-num-seqs 64"""),
        "is on with up to 64 requests running",
    ),
    Case(
        "speculation-at-high-concurrency",
        space({"speculation": NGRAM}, workload=traffic(in_flight=64)),
        "speculative decoding may be on",
    ),
    Case(
        "speculation-at-high-concurrency",
        command("--spec-method ngram --spec-tokens 4", workload=traffic(in_flight=32)),
        None,
    ),
    Case(
        "speculation-at-high-concurrency",
        command("--spec-method ngram --spec-tokens 4 --max-num-seqs 8", workload=traffic(in_flight=64)),
        None,
    ),
    Case("speculation-at-high-concurrency", command("", workload=traffic(in_flight=64)), None),
    Case(
        "speculation-on-dummy-weights",
        command("--spec-method ngram --spec-tokens 4 --load-format dummy"),
        "is on with load-format dummy",
    ),
    Case("speculation-on-dummy-weights", space({"s": NGRAM}, flags={"load-format": "dummy"}), "may be on"),
    Case("speculation-on-dummy-weights", command("--spec-method ngram --spec-tokens 4"), None),
    Case("speculation-on-dummy-weights", command("--load-format dummy"), None),
)

PARALLELISM = (
    Case("tp-not-dividing-heads", command("-tp 3", shape=shape()), "is 3, and the model's 40 attention heads"),
    Case(
        "tp-not-dividing-heads",
        space({"tensor-parallel-size": choice(1, 2, 6)}, shape=shape()),
        "the range of tensor-parallel-size allows 6",
    ),
    Case("tp-not-dividing-heads", command("-tp 8", shape=shape()), None),
    Case("tp-not-dividing-heads", command("-tp 3"), None),
    Case("more-cards-than-present", command("-tp 2 -pp 2", devices=2), "that takes 4 cards, and there are 2"),
    Case("more-cards-than-present", space({"tensor-parallel-size": choice(1, 2)}, devices=1), "and there is 1"),
    Case("more-cards-than-present", command("-tp 2 -dp 8 -dpl 2", devices=4), None),
    Case("more-cards-than-present", command("-tp 2 -pp 2", devices=4), None),
    Case("more-cards-than-present", command("-tp 16 --nnodes 2", devices=8), None),
    Case("more-cards-than-present", command("-tp 16 --distributed-executor-backend ray", devices=8), None),
    Case("more-cards-than-present", command("-tp 16"), None),
    Case(
        "tp-on-model-that-fits-one-card",
        command("-tp 2", shape=shape(), device_memory_bytes=H200),
        "the weights (27.5 GiB) take no more than half of one card (127.9 GiB usable)",
    ),
    Case("tp-on-model-that-fits-one-card", command("-tp 2", shape=shape(), device_memory_bytes=48 * GIB), None),
    Case("tp-on-model-that-fits-one-card", command("-tp 2", shape=shape(MOE), device_memory_bytes=H200), None),
    Case("tp-on-model-that-fits-one-card", command("-tp 1", shape=shape(), device_memory_bytes=H200), None),
    Case(
        "tp-on-model-that-fits-one-card",
        command("-tp 2", shape=shape(), device_memory_bytes=H200, slos=["p99_tpot_ms=20"]),
        None,
    ),
    Case("pp-for-latency", command("-pp 2", objective="p99_ttft"), "pipeline-parallel-size is 2"),
    Case("pp-for-latency", command("-pp 2", slos=["p99_e2e<=1.0x"]), "pipeline-parallel-size is 2"),
    Case("pp-for-latency", command("-pp 2", objective="throughput"), None),
    Case("pp-for-latency", command("-pp 1", objective="p99_ttft"), None),
    Case("expert-parallel-on-dense-model", command("--enable-expert-parallel", shape=shape()), "has no experts"),
    Case("expert-parallel-on-dense-model", space({"enable-expert-parallel": switch()}, shape=shape()), "allows true"),
    Case("expert-parallel-on-dense-model", command("--enable-expert-parallel", shape=shape(MOE)), None),
    Case("expert-parallel-on-dense-model", command("", shape=shape()), None),
)

QUALITY = (
    Case("kv-cache-dtype-changes-output", command("--kv-cache-dtype fp8"), "kv-cache-dtype is fp8"),
    Case("kv-cache-dtype-changes-output", space({"kv-cache-dtype": choice("auto", "fp8")}), "allows fp8"),
    Case("kv-cache-dtype-changes-output", command("--kv-cache-dtype bfloat16"), None),
    Case("quantization-changes-output", command("--quantization fp8_per_block"), "quantization is fp8_per_block"),
    Case("quantization-changes-output", command("-q fp8", shape=shape()), "quantization is fp8"),
    Case("quantization-changes-output", space({"quantization": choice("fp8", "awq")}), "allows awq"),
    Case("quantization-changes-output", command("-q fp8", shape=shape(FP8)), None),
    Case("quantization-changes-output", command("-q awq"), None),
    Case("dtype-changes-output", space({"dtype": choice("float16", "bfloat16")}), "over float16, bfloat16"),
    Case("dtype-changes-output", command("--dtype float16"), None),
    Case(
        "speculation-changes-output",
        command("""--speculative-config '{"method": "ngram", "rejection_sample_method": "synthetic"}'"""),
        "rejection_sample_method is synthetic",
    ),
    Case(
        "speculation-changes-output",
        command("""--speculative-config '{"method": "ngram", "rejection_sample_method": "block"}'"""),
        None,
    ),
)

MEASURING = (
    Case(
        "too-few-requests-for-percentile",
        command("", workload=traffic(min_requests=99), slos=["p90_e2e_ms=9", "p99_e2e_ms=9"]),
        "p99_e2e_ms<=9 needs 100 requests",
    ),
    Case(
        "too-few-requests-for-percentile",
        command("", workload=traffic(min_requests=99), objective="p99_ttft"),
        "objective p99_ttft needs 100 requests",
    ),
    Case(
        "too-few-requests-for-percentile",
        command("", workload=traffic(min_requests=999), slos=["p99.9_e2e_ms=9"]),
        "needs 1000 requests",
    ),
    Case(
        "too-few-requests-for-percentile",
        command("", workload=traffic(min_requests=100), slos=["p99_e2e_ms=9", "mean_ttft_ms=5"]),
        None,
    ),
    Case(
        "too-few-requests-for-percentile", command("", workload=traffic(min_requests=1), objective="throughput"), None
    ),
    Case(
        "window-shorter-than-ten-latencies",
        command("", workload=traffic(min_s=8), slos=["p99_e2e_ms=5000"]),
        "lets a request wait 5 s, and the window may close after 8 s, 1.6 times that",
    ),
    Case("window-shorter-than-ten-latencies", command("", workload=traffic(min_s=8), slos=["p99_e2e_ms=800"]), None),
    Case("window-shorter-than-ten-latencies", command("", workload=traffic(min_s=1), slos=["p99_e2e<=1x"]), None),
    Case("window-shorter-than-ten-latencies", command("", workload=traffic(min_s=1), slos=["p99_itl_ms=900"]), None),
    Case("engine-and-load-share-cores", space({"x": switch()}, device="cpu", pin_cpus=False), "pin_cpus is false"),
    Case("engine-and-load-share-cores", space({"x": switch()}, device="cpu", pin_cpus=True), None),
    Case("engine-and-load-share-cores", space({"x": switch()}, device="gpu", pin_cpus=False), None),
    Case("engine-and-load-share-cores", command("", device="cpu"), None),
    Case("log-stats-disabled", command("--disable-log-stats"), "disable-log-stats is set"),
    Case("log-stats-disabled", command(""), None),
    Case("flag-games-the-score", command("--stream-interval 10"), "bundles tokens"),
    Case("flag-games-the-score", command("--max-num-queued-reqs 64"), "answers 503"),
    Case("flag-games-the-score", replace(command(""), flags={"stream-interval": 10}), "bundles tokens"),
    Case("flag-games-the-score", replace(command(""), flags={"stream-interval": 1}), None),
    Case("flag-games-the-score", command("--max-num-seqs 64"), None),
    Case("startup-plan-on", replace(command(""), env={"VLLM_ENABLE_STARTUP_PLAN": "1"}), "is 1"),
    Case("startup-plan-on", replace(command(""), env={"VLLM_ENABLE_STARTUP_PLAN": "0"}), None),
    Case("startup-plan-on", command(""), None),
)

SEARCHING = (
    Case("single-value-parameter", space({"block-size": choice(16)}), "block-size has one value: 16"),
    Case("single-value-parameter", space({"block-size": choice(16, 32)}), None),
    Case(
        "single-value-parameter",
        space(
            {
                "speculation": NGRAM,
                "tokens": choice(4, flag="speculative-config.num_speculative_tokens", when={"speculation": "ngram"}),
            }
        ),
        None,
    ),
    Case(
        "too-few-trials",
        space({"block-size": choice(16, 32), "enforce-eager": switch()}, trials=5),
        "5 trials, of which 3 search 2 parameters",
    ),
    Case("too-few-trials", space({"block-size": choice(16, 32), "enforce-eager": switch()}, trials=6), None),
    Case("too-few-trials", command(""), None),
    Case(
        "every-trial-compiles",
        space({"max-num-seqs": number("int", 4, 128, log=True)}),
        "max-num-seqs ranges over 4..128 (log): 125 values",
    ),
    Case("every-trial-compiles", space({"max-num-seqs": number("int", 16, 256, step=16)}), None),
    Case("every-trial-compiles", space({"max-num-seqs": choice(*range(1, 40))}), None),
    Case("every-trial-compiles", space({"max-num-active-seqs": number("int", 4, 128)}), None),
    Case("every-trial-compiles", space({"max-num-seqs": number("int", 4, 128)}, flags={"enforce-eager": True}), None),
    Case("every-trial-compiles", space({"max-num-seqs": number("int", 4, 128)}, device="cpu"), None),
    Case(
        "parameter-without-effect",
        space({"max-num-seqs": choice(32, 64)}, workload=traffic()),
        "max-num-seqs is searched from 32 up, and the workload never reaches more than 32",
    ),
    Case(
        "parameter-without-effect",
        space({"max-num-batched-tokens": choice(16384, 32768)}, workload=traffic()),
        "never reaches more than 16384",
    ),
    Case(
        "parameter-without-effect",
        space({"long-prefill-token-threshold": choice(0, 512)}, workload=traffic()),
        "long-prefill-token-threshold is searched from 512 up",
    ),
    Case("parameter-without-effect", space({"scheduling-policy": choice("fcfs", "priority")}), "carries a priority"),
    Case("parameter-without-effect", space({"optimization-level": number("int", 1, 3)}), "2 and 3, which are the same"),
    Case("parameter-without-effect", space({"optimization-level": choice(1, 2)}), None),
    Case("parameter-without-effect", space({"max-num-seqs": choice(31, 64)}, workload=traffic()), None),
    Case("parameter-without-effect", space({"max-num-seqs": choice(32, 64)}), None),
    Case("parameter-without-effect", command("--max-num-seqs 64", workload=traffic()), None),
)

CASES = (
    *MEMORY,
    *BATCHING,
    *GRAPHS,
    *PREFIX_CACHE,
    *SPECULATION,
    *PARALLELISM,
    *QUALITY,
    *MEASURING,
    *SEARCHING,
)
