"""`/metrics` in Prometheus' text format, under the names of vLLM's V1 engine (vllm/v1/metrics/loggers.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from optimizer.engine.simulated.histogram import Histogram
from optimizer.engine.simulated.kv_budget import KvPlan
from optimizer.engine.simulated.settings import EngineSettings
from optimizer.engine.simulated.step import SchedulerStats

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric: gauge, counter or histogram, with a sample for each set of further labels."""

    name: str
    kind: str
    text: str
    samples: tuple[tuple[Labels, float], ...] = ()
    histogram: Histogram | None = None

    @property
    def full_name(self) -> str:
        """As it stands in the text."""
        return f"vllm:{self.name}_total" if self.kind == "counter" else f"vllm:{self.name}"


def render_metrics(
    settings: EngineSettings,
    plan: KvPlan,
    stats: SchedulerStats,
    histograms: Mapping[str, Histogram],
    *,
    without: frozenset[str] = frozenset(),
) -> str:
    """All series of one engine. Counters never fall.

    Args:
        settings: Whose engine.
        plan: Its KV pool.
        stats: As of its last step.
        histograms: Name without prefix to histogram.
        without: Families to leave out, by name with or without `vllm:` and `_total`.
    """
    labels = {"engine": "0", "model_name": settings.served_model_names[0]}
    missing = {name.removeprefix("vllm:").removesuffix("_total") for name in without}
    families = [
        *_gauges(stats),
        *_counters(stats),
        *(_Family(name, "histogram", f"Histogram of {name}.", histogram=one) for name, one in histograms.items()),
    ]
    if settings.speculation is not None:
        families += _speculation_counters(stats)
    lines = [
        line
        for family in families
        if family.name.removesuffix("_total") not in missing
        for line in _lines(family, labels)
    ]
    if "cache_config_info" not in missing:
        lines += _lines(_cache_config(settings, plan), {"engine": "0"})
    return "\n".join(lines) + "\n"


def _gauge(name: str, text: str, value: float) -> _Family:
    return _Family(name, "gauge", text, (({}, value),))


def _counter(name: str, text: str, value: float) -> _Family:
    return _Family(name, "counter", text, (({}, value),))


def _split(name: str, kind: str, text: str, label: str, values: Mapping[str, float]) -> _Family:
    return _Family(name, kind, text, tuple(({label: key}, value) for key, value in values.items()))


def _gauges(stats: SchedulerStats) -> list[_Family]:
    reasons = {"capacity": stats.waiting, "deferred": 0}
    return [
        _gauge("num_requests_running", "Number of requests in model execution batches.", stats.running),
        _gauge("num_requests_waiting", "Number of requests waiting to be processed.", stats.waiting),
        _split("num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.", "reason", reasons),
        _gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", stats.kv_cache_usage),
    ]


def _counters(stats: SchedulerStats) -> list[_Family]:
    computed = stats.prompt_tokens - stats.prompt_tokens_cached
    sources = {"local_compute": computed, "local_cache_hit": stats.prompt_tokens_cached, "external_kv_transfer": 0}
    reasons = {
        "stop": 0,
        "length": stats.finished_requests,
        "abort": stats.aborted_requests,
        "error": 0,
        "repetition": 0,
    }
    return [
        _counter("num_preemptions", "Cumulative number of preemptions.", stats.preemptions),
        _counter("prefix_cache_queries", "Prefix cache queries, in tokens.", stats.prefix_cache_queries),
        _counter("prefix_cache_hits", "Prefix cache hits, in tokens.", stats.prefix_cache_hits),
        _counter("prompt_tokens", "Prefill tokens processed.", stats.prompt_tokens),
        _split("prompt_tokens_by_source", "counter", "Number of prompt tokens by source.", "source", sources),
        _counter("prompt_tokens_cached", "Number of cached prompt tokens.", stats.prompt_tokens_cached),
        _counter("generation_tokens", "Generation tokens processed.", stats.generation_tokens),
        _split("request_success", "counter", "Requests that ended, by reason.", "finished_reason", reasons),
    ]


def _speculation_counters(stats: SchedulerStats) -> list[_Family]:
    positions = {str(position): float(count) for position, count in enumerate(stats.accepted_per_position)}
    return [
        _counter("spec_decode_num_drafts", "Number of spec decoding drafts.", stats.drafts),
        _counter("spec_decode_num_draft_tokens", "Number of draft tokens.", stats.draft_tokens),
        _counter("spec_decode_num_accepted_tokens", "Number of accepted tokens.", stats.accepted_tokens),
        _split(
            "spec_decode_num_accepted_tokens_per_pos",
            "counter",
            "Accepted tokens per draft position.",
            "position",
            positions,
        ),
    ]


def _cache_config(settings: EngineSettings, plan: KvPlan) -> _Family:
    info = {
        "block_size": settings.block_size,
        "cache_dtype": settings.kv_cache_dtype,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_max_concurrency": plan.max_concurrency,
        "kv_cache_memory_bytes": settings.kv_cache_memory_bytes,
        "kv_cache_size_tokens": plan.pool_tokens,
        "num_gpu_blocks": plan.num_gpu_blocks,
        "num_gpu_blocks_override": settings.num_gpu_blocks_override,
    }
    labels = {key: str(value) for key, value in info.items()}
    return _Family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", ((labels, 1),))


def _lines(family: _Family, labels: Labels) -> Iterator[str]:
    name = family.full_name
    yield f"# HELP {name} {family.text}"
    yield f"# TYPE {name} {family.kind}"
    for more, value in family.samples:
        yield _series(name, {**labels, **more}, value)
    if family.histogram is not None:
        for edge, count in family.histogram.cumulative():
            yield _series(f"{name}_bucket", {**labels, "le": edge}, count)
        yield _series(f"{name}_count", labels, family.histogram.count)
        yield _series(f"{name}_sum", labels, family.histogram.total)


def _series(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {float(value)}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
