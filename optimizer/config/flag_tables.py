"""What must be known of vLLM's flags to read a command line: which take no value, several values, or a size.

The lists here are what the parsers of vLLM 0.26, 0.32 and 0.33 know between them, and serve where no vLLM is installed;
where one is, its own catalogue is asked (`tables_of`). A flag that is known to neither gets all words that follow it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from optimizer.engine.vllm.catalogue import FlagCatalogue


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BOOLEAN_FLAGS: Final = _words(
    """
    aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling calculate-kv-scales
    cohere-is-reasoning-model cudagraph-metrics data-parallel-external-lb data-parallel-hybrid-lb
    data-parallel-multi-port-external-lb dcp-q-replicate disable-cascade-attn disable-chunked-mm-input
    disable-custom-all-reduce disable-fastapi-docs disable-hybrid-kv-cache-manager disable-log-stats
    disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice
    enable-batch-sharded-sampling enable-bf16x3-router-gemm enable-chunked-prefill enable-cumem-allocator enable-dbo
    enable-elastic-ep enable-ep-weight-filter enable-eplb enable-expert-parallel enable-fault-tolerance
    enable-flash-late-interaction enable-flashinfer-autotune enable-force-include-usage enable-hc-sp
    enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs enable-log-requests
    enable-logging-iteration-details enable-lora enable-mamba-cache-stochastic-rounding
    enable-mamba-shared-prefix-checkpoint enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds
    enable-moe-shared-loras enable-nccl-comm-suspend enable-offline-docs enable-per-request-metrics
    enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers
    enable-return-routed-experts enable-scale-out enable-server-load-tracking enable-shm-tensor-arena
    enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint enable-tower-connector-lora
    enable-trace-replay enforce-eager exclude-tools-when-tool-choice-none fail-on-environ-validation
    fully-sharded-loras grpc headless interleave-mm-strings jit-monitor-verbose kv-cache-metrics
    kv-sharing-fast-prefill language-model-only log-error-stack long-prefill-token-threshold-adaptive
    mm-device-do-normalize mm-encoder-only monokernel numa-bind ray-workers-use-nsight return-sampling-mask
    return-tokens-as-token-ids scheduler-reserve-full-isl skip-mm-profiling skip-tokenizer-init
    sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay tokens-only trust-remote-code
    trust-request-chat-template trust-request-mm-kwargs use-fp64-gumbel use-replayssm use-tqdm-on-load
    """
)
"""Flags without a value: `--x`, and `--no-x`."""

LIST_FLAGS: Final = _words(
    """
    allowed-media-domains api-key collect-detailed-traces cpu-offload-params cudagraph-capture-sizes
    ignore-patterns kv-cache-dtype-skip-layers logits-processors lora-modules lora-target-modules numa-bind-cpus
    numa-bind-nodes offload-params served-model-name sleep-preserve-parameter-names
    """
)
"""Flags with one or more values, up to the next flag."""

VALUE_FLAGS: Final = _words(
    """
    additional-config all2all-backend allowed-headers allowed-local-media-path allowed-methods allowed-origins
    anthropic-disabled-thinking-effort api-server-count attention-backend attention-config aux-output-config
    block-size chat-template chat-template-content-format code-revision cohere-format compilation-config config
    config-format convert cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-gb
    custom-histogram-buckets data-parallel-address data-parallel-backend data-parallel-rank data-parallel-rpc-port
    data-parallel-size data-parallel-size-local data-parallel-start-rank data-parallel-supervisor-port
    dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size
    decode-context-parallel-size default-chat-template-kwargs default-mm-loras device-ids diffusion-config
    disable-access-log-for-endpoints distributed-executor-backend distributed-timeout-seconds download-dir
    dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
    dp-sync-interval dtype ec-manager-config ec-transfer-config elastic-ep-max-dp-size engram-config eplb-config
    expert-placement-strategy fault-tolerance-config fingerprint-mode fingerprint-value gdn-prefill-backend
    generation-config gpu-memory-utilization grpc-port h11-max-header-count h11-max-incomplete-event-size
    hf-config-path hf-overrides host io-processor-plugin ir-op-priority jit-monitor-mode kda-decode-backend
    kda-prefill-backend kernel-config kv-cache-dtype kv-cache-memory-bytes kv-cache-metrics-sample kv-events-config
    kv-offloading-backend kv-offloading-size kv-transfer-config limit-mm-per-prompt linear-backend load-format
    log-config-file log-level logging-config logprobs-mode long-prefill-token-threshold lora-dtype mamba-backend
    mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype
    mamba-ssu-algorithm master-addr master-port max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs
    max-long-partial-prefills max-lora-cls-labels max-lora-rank max-loras max-model-len max-num-active-seqs
    max-num-batched-tokens max-num-partial-prefills max-num-queued-reqs max-num-queued-tokens
    max-num-scheduled-tokens max-num-seqs max-parallel-loading-workers media-io-kwargs middleware
    mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
    mm-encoder-fp8-scale-save-path mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb
    mm-processor-cache-type mm-processor-device mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc
    model model-class-overrides model-impl model-loader-extra-config moe-backend nnodes node-rank
    num-gpu-blocks-override offload-backend offload-group-size offload-num-in-group offload-prefetch-step
    optimization-level otlp-traces-endpoint override-attention-dtype override-generation-config
    per-request-spec-decode-metrics performance-mode pipeline-parallel-size pooler-config port
    prefill-context-parallel-size prefill-schedule-interval prefix-cache-retention-interval prefix-caching-hash-algo
    prefix-match-unit profiler-config pt-load-map-location quantization quantization-config reasoning-config
    reasoning-effort-map reasoning-parser reasoning-parser-plugin renderer-num-workers replayssm-buffer-len
    response-role revision root-path runner safetensors-load-strategy safetensors-prefetch-block-size
    safetensors-prefetch-num-threads scheduler-cls scheduling-policy seed show-hidden-metrics-for-version
    shutdown-timeout sleep-mode-backend sparse-indexer-topk-backend spec-method spec-model spec-tokens
    speculative-config sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile
    stream-interval structured-outputs-config tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision
    tool-call-parser tool-parser-plugin tool-server tool-strict-level ubatch-size uds uvicorn-log-level
    video-pruning-method video-pruning-rate watchdog-config watermark watermark-config weight-transfer-config
    worker-cls worker-extension-cls
    """
)
"""Flags with exactly one value."""

SIZE_FLAGS: Final = _words(
    """
    max-model-len max-num-batched-tokens max-num-scheduled-tokens max-num-queued-tokens kv-cache-memory-bytes
    safetensors-prefetch-block-size
    """
)
"""Flags that take 8k for 8000 and 8K for 8192."""

TEXT_FLAGS: Final = frozenset({"revision", "code-revision", "tokenizer-revision", "chat-template", "model"})
"""Flags whose value stays text though it may look like a number or JSON, such as a commit hash."""

SHORT_FLAGS: Final = {
    "O": "optimization-level",
    "asc": "api-server-count",
    "q": "quantization",
    "pp": "pipeline-parallel-size",
    "n": "nnodes",
    "r": "node-rank",
    "tp": "tensor-parallel-size",
    "dcp": "decode-context-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "dp": "data-parallel-size",
    "dpn": "data-parallel-rank",
    "dpr": "data-parallel-start-rank",
    "dpl": "data-parallel-size-local",
    "dpa": "data-parallel-address",
    "dpp": "data-parallel-rpc-port",
    "dpb": "data-parallel-backend",
    "dph": "data-parallel-hybrid-lb",
    "dpe": "data-parallel-external-lb",
    "dpm": "data-parallel-multi-port-external-lb",
    "ep": "enable-expert-parallel",
    "sc": "speculative-config",
    "dc": "diffusion-config",
    "cc": "compilation-config",
    "ac": "attention-config",
}
"""Short form, without its dash, to flag."""

SAME_FLAGS: Final = {
    "device-memory-utilization": "gpu-memory-utilization",
    "spec-method": "speculative-config.method",
    "spec-model": "speculative-config.model",
    "spec-tokens": "speculative-config.num_speculative_tokens",
}
"""Other spellings of a flag, to the one that is used here."""


@dataclass(frozen=True, slots=True)
class FlagTables:
    """How many words each flag takes, by canonical name.

    Attributes:
        switches: Flags without a value: `--x`, and `--no-x`.
        lists: Flags with one or more values, up to the next flag.
        values: Flags with exactly one value.
        optional: Flags with one value or none.
        sizes: Flags that take 8k for 8000 and 8K for 8192.
        shorts: Short form, without its dash, to flag.
    """

    switches: frozenset[str]
    lists: frozenset[str]
    values: frozenset[str]
    optional: frozenset[str]
    sizes: frozenset[str]
    shorts: dict[str, str]

    def knows(self, name: str) -> bool:
        """Whether a canonical name without a dotted key is a flag, or turns one off."""
        listed = self.switches | self.values | self.lists | self.optional | SAME_FLAGS.keys()
        return name in listed or self.turned_off(name) in self.switches

    def turned_off(self, name: str) -> str | None:
        """The flag that `no-x`, `disable-x` or `enable-x` turns off, or None when it turns nothing off."""
        if name in self.switches:
            return None
        if name.startswith("no-"):
            return name.removeprefix("no-")
        for prefix, opposite in (("disable-", "enable-"), ("enable-", "disable-")):
            flag = opposite + name.removeprefix(prefix)
            if name.startswith(prefix) and flag in self.switches:
                return flag
        return None

    def with_switches(self, names: frozenset[str]) -> FlagTables:
        """The same tables, where these names are flags without a value unless they are known already."""
        return replace(self, switches=self.switches | frozenset(name for name in names if not self.knows(name)))


STATIC_TABLES: Final = FlagTables(
    BOOLEAN_FLAGS, LIST_FLAGS, VALUE_FLAGS, frozenset({"hf-token"}), SIZE_FLAGS, SHORT_FLAGS
)
"""For where no vLLM is installed."""


def tables_of(catalogue: FlagCatalogue) -> FlagTables:
    """What an installed vLLM knows."""
    by_words = {
        words: frozenset(name for flag in catalogue.flags if flag.words == words for name in _names(flag.on, flag.name))
        for words in ("none", "one", "optional", "many")
    }
    return FlagTables(
        switches=by_words["none"],
        lists=by_words["many"],
        values=by_words["one"],
        optional=by_words["optional"],
        sizes=frozenset(flag.name for flag in catalogue.flags if flag.kind in ("size", "size_or_auto")),
        shorts={"O": "optimization-level"}
        | {short.removeprefix("-"): flag.name for flag in catalogue.flags for short in flag.short},
    )


def _names(spellings: tuple[str, ...], name: str) -> frozenset[str]:
    return frozenset({name, *(spelling.removeprefix("--") for spelling in spellings)})


_DEPLOYMENT_FLAGS: Final = _words(
    """
    host port uds grpc grpc-port root-path middleware api-key hf-token served-model-name
    allow-credentials allowed-origins allowed-methods allowed-headers allowed-local-media-path allowed-media-domains
    enable-ssl-refresh disable-fastapi-docs enable-offline-docs enable-request-id-headers
    disable-access-log-for-endpoints disable-uvicorn-access-log enable-log-requests enable-log-outputs
    enable-log-deltas max-log-len log-level logging-config log-config-file log-error-stack
    """
)


def is_deployment_flag(flag: str) -> bool:
    """Whether a canonical flag only says where and for whom a server runs, so that it has no place in a trial."""
    positive = flag.replace("disable-", "enable-", 1) if flag.startswith("disable-") else flag
    return (
        flag in _DEPLOYMENT_FLAGS or positive in _DEPLOYMENT_FLAGS or flag.startswith(("ssl-", "uvicorn-", "allowed-"))
    )


DEPLOYMENT_VARIABLES: Final = frozenset(
    {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "VLLM_HOST_IP", "VLLM_PORT"}
)
"""Environment variables that place a server on a machine; the tool places its engines itself."""
