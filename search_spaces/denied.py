"""What no space may search or set: it would game the score, or it belongs to the tool itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from optimizer.core.engine_config import JsonValue, canonical_flag

_QUEUE = "it answers 503 beyond a limit, so P99 improves by turning users away"
_SYNTHETIC = "it accepts guessed tokens by a dice and not by the model, so that speed is bought with wrong answers"
_ADDRESS = "the tool binds each engine to 127.0.0.1 on a fresh port"
_TLS = "the tool talks to its own engine on 127.0.0.1 without TLS"
_HTTP = "the tool measures through the HTTP server, which is not there then"

GAMING_FLAGS: Final[dict[str, str]] = {
    "stream-interval": "it bundles tokens into fewer chunks, which changes the measured ITL and not the engine's work",
    "max-num-queued-reqs": _QUEUE,
    "max-num-queued-tokens": _QUEUE,
    "speculative-config.synthetic_acceptance_rate": _SYNTHETIC,
    "speculative-config.synthetic_acceptance_rates": _SYNTHETIC,
    "speculative-config.synthetic_acceptance_length": _SYNTHETIC,
}
"""Canonical flag, perhaps with a dotted key, to the reason as the rest of a sentence."""

_GAMING_VALUES: Final = {("speculative-config.rejection_sample_method", "synthetic"): _SYNTHETIC}

_TOOL_FLAGS: Final = {
    "disable-log-stats": "it removes the engine's metrics, which the record needs",
    "host": _ADDRESS,
    "port": _ADDRESS,
    "uds": _ADDRESS,
    "api-key": "the tool gives each engine a random key; a key of yours would end in the record",
    "served-model-name": "the tool serves under a launch nonce that proves whose engine answers",
    "enable-ssl-refresh": _TLS,
    "headless": _HTTP,
    "grpc": _HTTP,
    "tokens-only": "the tool measures through /v1/completions, which is not there then",
    "config": "the record could not tell what a file of flags holds; set the flags themselves",
}

DENIED_FLAGS: Final[dict[str, str]] = {**GAMING_FLAGS, **_TOOL_FLAGS}
"""Canonical flag to the reason. `ssl-*` flags are denied by prefix."""

DENIED_VARIABLES: Final[dict[str, str]] = {
    "VLLM_ENABLE_STARTUP_PLAN": "it reuses a KV cache size measured under another memory setting",
    "VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "it sends tokens to experts by a dice and not by the model's router",
    "VLLM_TEST_FORCE_LOAD_FORMAT": "it loads other weights than load-format says",
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "the server would outlive its engine, and a crash would look like slowness",
    "VLLM_CPU_KVCACHE_SPACE": "it overrides gpu-memory-utilization; state the memory with engine.memory_gib",
    "VLLM_SERVER_DEV_MODE": "the tool sets it where it needs it",
}
"""Environment variable to the reason."""

GAMING_VARIABLES: Final = frozenset(
    {"VLLM_ENABLE_STARTUP_PLAN", "VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "VLLM_TEST_FORCE_LOAD_FORMAT"}
)
"""Those of them that make a measurement untrue, whoever sets them."""


def denied_reason(flag: str) -> str | None:
    """Why a space may not set the flag, or None when it may. Any spelling, dotted keys included.

    >>> denied_reason("--stream_interval") is None
    False
    >>> denied_reason("max-num-seqs") is None
    True
    """
    name = canonical_flag(flag)
    head = name.partition(".")[0]
    if head.startswith("ssl-"):
        return _TLS
    return next(
        (DENIED_FLAGS[known] for known in (name, head, head.removeprefix("no-")) if known in DENIED_FLAGS), None
    )


def denied_variable_reason(name: str) -> str | None:
    """Why an environment variable may not be set, or None when it may."""
    return DENIED_VARIABLES.get(name)


def gaming_reason(flag: str, value: JsonValue) -> str | None:
    """Why a setting makes a measurement untrue, or None when it does not. JSON is searched down to its last keys.

    >>> gaming_reason("speculative-config", {"method": "ngram", "rejection_sample_method": "synthetic"}) is None
    False
    """
    for path, leaf in _leaves(canonical_flag(flag), value):
        reason = GAMING_FLAGS.get(path) or _GAMING_VALUES.get((path, str(leaf)))
        if reason is not None:
            return reason
    return None


def _leaves(path: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key.replace('-', '_')}", inner)
    else:
        yield path, value
