"""What a start-up log tells of memory, in the lines of real logs."""

from __future__ import annotations

from optimizer.engine.vllm.startup_log import StartupFacts, startup_facts

CPU_LOG = """\
(Worker pid=20901) INFO 11-29 19:52:15 [cpu_worker.py:260] Auto set (1.1/11.34) GiB for KV cache on node 0, with 1.7 \
GiB requested memory for the worker. 0.6 GiB memory was consumed by non-kv usages.
(EngineCore pid=20895) INFO 11-29 19:52:15 [kv_cache_utils.py:2327] CPU KV cache size: 36,032 tokens, Maximum \
concurrency for 4,096 tokens per request: 8.80x
(EngineCore pid=20895) INFO 11-29 19:52:16 [core.py:402] init engine (profile, create kv cache, warmup model) took \
0.78 s
"""
GPU_LOG = """\
INFO 11-29 16:29:09 [gpu_worker.py:773] Available KV cache memory: 35.43 GiB
INFO 11-29 16:29:09 [kv_cache_utils.py:1147] GPU KV cache size: 1,934,000 tokens, Maximum concurrency for 32,768 \
tokens per request: 59.02x
INFO 11-29 16:29:31 [core.py:405] init engine (profile, create kv cache, warmup model) took 41.20 s (compilation: \
12.50 s)
"""
OLD_GPU_LOG = """\
(EngineCore_DP0 pid=7) INFO 01-02 03:04:05 [kv_cache_utils.py:1087] GPU KV cache size: 131,072 tokens
(EngineCore_DP0 pid=7) INFO 01-02 03:04:05 [kv_cache_utils.py:1091] Maximum concurrency for 8,192 tokens per request: \
16.00x
"""


def test_a_cpu_engine():
    assert startup_facts(CPU_LOG) == StartupFacts(
        kv_cache_tokens=36032, max_concurrency=8.8, requested_memory_gib=1.7, engine_init_s=0.78
    )


def test_a_gpu_engine():
    assert startup_facts(GPU_LOG) == StartupFacts(
        kv_cache_tokens=1_934_000, max_concurrency=59.02, available_kv_gib=35.43, engine_init_s=41.2
    )


def test_a_release_that_says_it_in_two_lines():
    assert startup_facts(OLD_GPU_LOG) == StartupFacts(kv_cache_tokens=131_072, max_concurrency=16.0)


def test_a_log_that_is_silent():
    assert startup_facts("") == StartupFacts() == startup_facts("INFO 11-29 16:29:09 [a.py:1] hello\n")
