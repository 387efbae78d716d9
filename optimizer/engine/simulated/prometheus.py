"""`/metrics` in Prometheus' text format, under the names of vLLM's V1 engine (vllm/v1/metrics/loggers.py)."""

from __future__ import annotations

from optimizer.engine.simulated.kv_budget import KvPlan
from optimizer.engine.simulated.scheduler import SchedulerStats
from optimizer.engine.simulated.settings import EngineSettings


def render_metrics(settings: EngineSettings, plan: KvPlan, stats: SchedulerStats) -> str:
    """All series of one engine. Counters never fall; histograms are left out."""
    labels = {"engine": "0", "model_name": settings.served_model_names[0]}
    info = {
        "block_size": settings.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": settings.enable_prefix_caching,
        "engine": 0,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_max_concurrency": plan.pool_tokens / plan.max_model_len,
        "kv_cache_size_tokens": plan.pool_tokens,
        "num_gpu_blocks": plan.num_gpu_blocks,
        "num_gpu_blocks_override": settings.num_gpu_blocks_override,
    }
    gauges: list[tuple[str, str, float]] = [
        ("num_requests_running", "Number of requests in model execution batches.", stats.running),
        ("num_requests_waiting", "Number of requests waiting to be processed.", stats.waiting),
        ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", stats.kv_cache_usage),
    ]
    counters: list[tuple[str, str, float]] = [
        ("num_preemptions", "Cumulative number of preemptions.", stats.preemptions),
        ("prefix_cache_queries", "Prefix cache queries, in tokens.", stats.prefix_cache_queries),
        ("prefix_cache_hits", "Prefix cache hits, in tokens.", stats.prefix_cache_hits),
        ("prompt_tokens", "Prefill tokens processed.", stats.prompt_tokens),
        ("generation_tokens", "Generation tokens processed.", stats.generation_tokens),
    ]
    finished = {"stop": 0, "length": stats.finished_requests, "abort": stats.aborted_requests, "error": 0}
    lines: list[str] = []
    for name, text, value in gauges:
        lines += [*_family(name, "gauge", text), _series(name, labels, value)]
    for name, text, value in counters:
        lines += [*_family(name, "counter", text), _series(f"{name}_total", labels, value)]
    lines += _family("request_success", "counter", "Requests that ended, by reason.")
    lines += [_series("request_success_total", labels | {"finished_reason": why}, n) for why, n in finished.items()]
    lines += _family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig.")
    lines.append(_series("cache_config_info", {key: str(value) for key, value in info.items()}, 1))
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str) -> list[str]:
    full_name = f"vllm:{name}_total" if kind == "counter" else f"vllm:{name}"
    return [f"# HELP {full_name} {text}", f"# TYPE {full_name} {kind}"]


def _series(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"vllm:{name}{{{inside}}} {float(value)}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
