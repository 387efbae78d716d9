"""Flags that texts name and today's vLLM does not have: what became of each, and what is written instead.

Two kinds stand here: flags of older releases, and flags that no release ever had but that tutorials pass on. What an
installed vLLM knows is never old for it: its catalogue is asked first (some of these are still there in 0.26).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from optimizer.core.engine_config import FlagValue
from optimizer.engine.vllm.old_values import (
    Settings,
    attention_backend,
    capture_sizes,
    draft_model,
    guided_backend,
    json_or_text,
    number_or_text,
    offloading_gib,
    runner_of_task,
)

Words: TypeAlias = Literal["none", "one", "many"]
Convert: TypeAlias = Callable[[str, int], Settings]
"""The value as it was written and the tensor-parallel size, to today's settings, dotted keys allowed."""


class Fate(enum.Enum):
    """What became of an old flag."""

    REPLACED = "replaced"
    """Another flag does it, and takes over the value."""
    NEEDLESS = "needless"
    """What it asked for is so anyway, or was never vLLM's to do: it is left out and nothing is lost."""
    GONE = "gone"
    """Nothing does it any more."""
    RELATED = "related"
    """Another flag is near, but its value means something else: it is named, and yours to set."""


@dataclass(frozen=True, slots=True)
class OldFlag:
    """One flag that is no more, or never was.

    Attributes:
        name: Canonical name; or an environment variable's.
        words: How many words follow it.
        fate: What became of it.
        why: The same in a sentence, for a person.
        today: Today's flags, dotted keys allowed.
        convert: Its value in terms of `today`; None where no value is taken over.
        back_in: Release that has the name again.
        invented: Whether no release ever had it.
    """

    name: str
    words: Words
    fate: Fate
    why: str
    today: tuple[str, ...] = ()
    convert: Convert | None = None
    back_in: str | None = None
    invented: bool = False


def _renamed(name: str, today: str, why: str = "", *, read: Callable[[str], FlagValue] = number_or_text) -> OldFlag:
    return OldFlag(
        name, "one", Fate.REPLACED, why or "it has another name now", (today,), lambda v, _: {today: read(v)}
    )


def _converted(name: str, convert: Convert, today: tuple[str, ...], why: str, words: Words = "one") -> OldFlag:
    return OldFlag(name, words, Fate.REPLACED, why, today, convert)


def _switched(name: str, today: Mapping[str, FlagValue], why: str) -> OldFlag:
    return OldFlag(name, "none", Fate.REPLACED, why, tuple(today), lambda _value, _cards: dict(today))


def _needless(name: str, why: str, words: Words = "none", *, back_in: str | None = None) -> OldFlag:
    return OldFlag(name, words, Fate.NEEDLESS, why, back_in=back_in)


def _gone(name: str, why: str, words: Words = "one") -> OldFlag:
    return OldFlag(name, words, Fate.GONE, why)


def _related(name: str, today: tuple[str, ...], why: str, words: Words = "one") -> OldFlag:
    return OldFlag(name, words, Fate.RELATED, why, today)


_JSON = "speculation is set in one JSON object"
_ONE_ENGINE = "the engine of vLLM's first design, which had it, is gone"
_GRAMMAR = "structured output is set in one JSON object"
_ALWAYS = "vLLM always works so"

_INVENTED: Final = (
    _needless("max-padding-tokens", "vLLM packs sequences one behind the other and never pads", "one"),
    _needless("enable-paged-attention", _ALWAYS),
    _needless("use-paged-attention", _ALWAYS),
    _needless("enable-continuous-batching", _ALWAYS),
    _needless("continuous-batching", _ALWAYS),
    _needless("max-wait-time", "a request joins the running batch at the next step", "one"),
    _needless("batch-timeout", "a request joins the running batch at the next step", "one"),
    _needless("enable-dynamic-memory", "the KV cache is taken once, at the start, in full"),
    _needless("enable-kv-cache", _ALWAYS),
    _needless("use-cuda-graph", "CUDA graphs are on, and --enforce-eager turns them off"),
    _needless("enable-cuda-graph", "CUDA graphs are on, and --enforce-eager turns them off"),
    _needless("use-flash-attention", "the attention backend is chosen by the hardware"),
    _switched("disable-cuda-graph", {"enforce-eager": True}, "it has another name"),
    _related(
        "prefix-cache-size",
        ("gpu-memory-utilization", "kv-cache-memory-bytes"),
        "prefixes are kept in whatever is free of the KV cache, which these flags size",
    ),
    _renamed("max-batch-size", "max-num-seqs", "this is the most sequences in one step"),
    _renamed(
        "max-concurrent-requests", "max-num-seqs", "another server's flag: this is the most sequences in one step"
    ),
    _renamed("max-batch-total-tokens", "max-num-batched-tokens", "another server's flag"),
    _renamed("max-batch-prefill-tokens", "max-num-batched-tokens", "another server's flag"),
    _renamed("max-total-tokens", "max-model-len", "another server's flag: prompt and answer together"),
    _renamed("gpu-memory-fraction", "gpu-memory-utilization", "it has another name"),
    _switched(
        "moe-expert-load-balance",
        {"enable-expert-parallel": True, "enable-eplb": True},
        "experts are balanced where they are spread over cards",
    ),
    _switched("enable-async-scheduling", {"async-scheduling": True}, "it has another name"),
)

_SPECULATION: Final = (
    _converted("speculative-model", draft_model, ("speculative-config.model", "speculative-config.method"), _JSON),
    _renamed("num-speculative-tokens", "speculative-config.num_speculative_tokens", _JSON),
    _renamed("speculative-draft-tensor-parallel-size", "speculative-config.draft_tensor_parallel_size", _JSON),
    _renamed("speculative-max-model-len", "speculative-config.max_model_len", _JSON),
    _renamed("speculative-model-quantization", "speculative-config.quantization", _JSON),
    _renamed("ngram-prompt-lookup-max", "speculative-config.prompt_lookup_max", _JSON),
    _renamed("ngram-prompt-lookup-min", "speculative-config.prompt_lookup_min", _JSON),
    _related(
        "speculative-disable-by-batch-size",
        ("speculative-config.num_speculative_tokens_per_batch_size",),
        "tokens guessed are given for each range of batch sizes, as [[low, high, tokens], …]",
    ),
    _gone("speculative-disable-mqa-scorer", _ONE_ENGINE, "none"),
    _related(
        "spec-decoding-acceptance-method",
        ("speculative-config.rejection_sample_method",),
        "the methods are others: standard and block keep the model's distribution",
    ),
    _gone("typical-acceptance-sampler-posterior-threshold", "that sampler is gone"),
    _gone("typical-acceptance-sampler-posterior-alpha", "that sampler is gone"),
    _gone("disable-logprobs-during-spec-decoding", _ONE_ENGINE, "none"),
)

_SCHEDULING: Final = (
    _converted(
        "swap-space",
        offloading_gib,
        ("kv-offloading-size",),
        "preempted requests are recomputed and never swapped; what is near is a second tier of the KV cache in host "
        "memory, in GiB over all cards together",
    ),
    _needless("preemption-mode", "preempted requests are always recomputed", "one"),
    _needless("num-scheduler-steps", "the next step is scheduled while the last one runs (--async-scheduling)", "one"),
    _needless("multi-step-stream-outputs", "every step streams its tokens", "none"),
    _needless("use-v2-block-manager", "there is only one block manager"),
    _related(
        "max-num-partial-prefills",
        ("long-prefill-token-threshold", "prefill-schedule-interval"),
        "removed: the size of a chunk and the steps between prefills are limited instead",
    ),
    _related(
        "max-long-partial-prefills",
        ("long-prefill-token-threshold", "prefill-schedule-interval"),
        "removed: the size of a chunk and the steps between prefills are limited instead",
    ),
    _gone("scheduler-delay-factor", _ONE_ENGINE),
    _gone("num-lookahead-slots", _ONE_ENGINE),
    _needless("disable-async-output-proc", _ONE_ENGINE),
    _needless("disable-frontend-multiprocessing", "the API server and the engine are always separate processes"),
    _needless("engine-use-ray", _ONE_ENGINE),
    _switched("worker-use-ray", {"distributed-executor-backend": "ray"}, "it is one choice of several now"),
)

_GRAPHS: Final = (
    _related(
        "max-seq-len-to-capture",
        ("max-cudagraph-capture-size",),
        "graphs no longer depend on the length of the context: the flag of today counts tokens of a batch",
    ),
    _related(
        "max-context-len-to-capture",
        ("max-cudagraph-capture-size",),
        "graphs no longer depend on the length of the context: the flag of today counts tokens of a batch",
    ),
    _converted(
        "cuda-graph-sizes",
        capture_sizes,
        ("cudagraph-capture-sizes", "max-cudagraph-capture-size"),
        "it has another name; one number is the largest size",
        "many",
    ),
    _renamed("cuda-graph-mode", "compilation-config.cudagraph_mode", read=str.upper),
    _renamed("cudagraph-mode", "compilation-config.cudagraph_mode", read=str.upper),
)

_OTHER: Final = (
    _needless("max-paddings", "vLLM packs sequences one behind the other and never pads", "one"),
    _needless("disable-log-requests", "requests are logged only where --enable-log-requests is given", back_in="0.33"),
    _converted("task", runner_of_task, ("runner", "convert"), "what is served is told by two flags"),
    _gone("device", "each build of vLLM is for one kind of device"),
    _converted("guided-decoding-backend", guided_backend, ("structured-outputs-config.backend",), _GRAMMAR),
    _gone("guided-decoding-disable-fallback", "there is no fallback any more", "none"),
    _switched(
        "guided-decoding-disable-any-whitespace", {"structured-outputs-config.disable_any_whitespace": True}, _GRAMMAR
    ),
    _switched(
        "guided-decoding-disable-additional-properties",
        {"structured-outputs-config.disable_additional_properties": True},
        _GRAMMAR,
    ),
    _needless("enable-reasoning", "--reasoning-parser alone turns it on"),
    _renamed("rope-scaling", "hf-overrides.rope_parameters", "it overrides the model's config.json", read=json_or_text),
    _renamed("rope-theta", "hf-overrides.rope_parameters.rope_theta", "it overrides the model's config.json"),
    _renamed("override-pooler-config", "pooler-config", read=json_or_text),
    _switched("disable-mm-preprocessor-cache", {"mm-processor-cache-gb": 0}, "the cache of inputs is given a size"),
    _switched("enable-multimodal-encoder-data-parallel", {"mm-encoder-tp-mode": "data"}, "it is one choice of two now"),
    _renamed("num-redundant-experts", "eplb-config.num_redundant_experts"),
    _renamed("eplb-window-size", "eplb-config.window_size"),
    _renamed("eplb-step-interval", "eplb-config.step_interval"),
    _switched("eplb-log-balancedness", {"eplb-config.log_balancedness": True}, "it has another name"),
    _gone("quantization-param-path", "scales of the KV cache come with the checkpoint"),
    _gone("calculate-kv-scales", "scales of the KV cache come with the checkpoint", "none"),
    _gone("override-attention-dtype", "removed after 0.26"),
    _gone("enable-bf16x3-router-gemm", "removed after 0.26", "none"),
    _gone("tokenizer-pool-size", _ONE_ENGINE),
    _gone("tokenizer-pool-type", _ONE_ENGINE),
    _gone("tokenizer-pool-extra-config", _ONE_ENGINE),
    _gone("lora-extra-vocab-size", "adapters no longer bring words of their own"),
    _gone("long-lora-scaling-factors", "removed with the first engine"),
    _gone("enable-lora-bias", "adapters with a bias are no longer served", "none"),
    _gone("qlora-adapter-name-or-path", "--lora-modules takes adapters of every kind"),
    _gone("enable-prompt-adapter", "prompt adapters are no longer served", "none"),
    _gone("max-prompt-adapters", "prompt adapters are no longer served"),
    _gone("max-prompt-adapter-token", "prompt adapters are no longer served"),
    _gone("logits-processor-pattern", "--logits-processors names those that are loaded"),
)

OLD_FLAGS: Final[Mapping[str, OldFlag]] = {
    flag.name: flag
    for flag in (*(replace(flag, invented=True) for flag in _INVENTED), *_SPECULATION, *_SCHEDULING, *_GRAPHS, *_OTHER)
}
"""Canonical name to what became of it."""

OLD_SWITCHES: Final = frozenset(flag.name for flag in OLD_FLAGS.values() if flag.words == "none")
"""Old flags without a value."""

OLD_VARIABLES: Final[Mapping[str, OldFlag]] = {
    variable.name: variable
    for variable in (
        _converted("VLLM_ATTENTION_BACKEND", attention_backend, ("attention-backend",), "it is a flag now"),
        _renamed("VLLM_FLASH_ATTN_VERSION", "attention-config.flash_attn_version", "it is a key of a flag now"),
        _renamed("VLLM_ALL2ALL_BACKEND", "all2all-backend", "it is a flag now"),
        _renamed("VLLM_TORCH_PROFILER_DIR", "profiler-config.torch_profiler_dir", "it is a key of a flag now"),
        _renamed("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "prefix-cache-retention-interval", "it is a flag now"),
        _renamed("VLLM_MM_HASHER_ALGORITHM", "mm-hasher-algorithm", "it is a flag now"),
        _needless("VLLM_USE_V1", "there is only this engine any more", "one"),
        _needless("VLLM_USE_TRITON_FLASH_ATTN", "the attention backend is chosen with --attention-backend", "one"),
        _needless("VLLM_ENGINE_ITERATION_TIMEOUT_S", "removed: nothing reads it", "one"),
    )
}
"""Environment variable to what became of it."""
