"""Flags that no space may search or set: they would game the score, or they belong to the tool itself."""

from __future__ import annotations

from optimizer.core.engine_config import canonical_flag

_ADDRESS = "the tool binds each engine to 127.0.0.1 on a fresh port"
_TLS = "the tool talks to its own engine on 127.0.0.1 without TLS"

DENIED_FLAGS: dict[str, str] = {
    "stream-interval": "it bundles tokens into fewer chunks, which changes the measured ITL and not the engine's work",
    "max-num-queued-reqs": "it answers 503 beyond a limit, so P99 improves by turning users away",
    "max-num-queued-tokens": "it answers 503 beyond a limit, so P99 improves by turning users away",
    "disable-log-stats": "it removes the engine's metrics, which the record needs",
    "host": _ADDRESS,
    "port": _ADDRESS,
    "uds": _ADDRESS,
    "api-key": "the tool gives each engine a random key; a key of yours would end in the record",
    "served-model-name": "the tool serves under a launch nonce that proves whose engine answers",
    "enable-ssl-refresh": _TLS,
}
"""Canonical flag to the reason, as the rest of a sentence. `ssl-*` flags are denied by prefix."""


def denied_reason(flag: str) -> str | None:
    """Why a space may not set the flag, or None when it may. Any spelling, dotted keys included.

    >>> denied_reason("--stream_interval") is None
    False
    >>> denied_reason("max-num-seqs") is None
    True
    """
    head = canonical_flag(flag).partition(".")[0]
    if head.startswith("ssl-"):
        return _TLS
    return DENIED_FLAGS.get(head) or DENIED_FLAGS.get(head.removeprefix("no-"))
