"""Why a trial did not end in a measurement, and who is to blame."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from optimizer.core.trial import Stage


class FailureKind(enum.StrEnum):
    """What went wrong, as far as the evidence tells."""

    REJECTED_FLAG = "rejected_flag"
    """The engine does not know a flag, or refuses its value: no trial with it can ever start."""
    INVALID_COMBINATION = "invalid_combination"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    OUT_OF_MEMORY = "out_of_memory"
    STARTUP_TIMEOUT = "startup_timeout"
    ENGINE_CRASH = "engine_crash"
    ENGINE_HANG = "engine_hang"
    ERROR_RATE = "error_rate"
    LOAD_TIMEOUT = "load_timeout"
    GPU_BUSY = "gpu_busy"
    PORT_TAKEN = "port_taken"
    CLIENT_SPOILED = "client_spoiled"
    HOST_FAULT = "host_fault"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class Blame(enum.StrEnum):
    """Who caused a failure: it decides what the search learns and whether the trial is tried again."""

    CONFIG = "config"
    """The setting: told to the search as a violated constraint."""
    HOST = "host"
    """The machine or its other tenants: retried, and never told to the search."""


class MemoryPhase(enum.StrEnum):
    """What the engine was doing when it ran out of memory: which flags give it room depends on that."""

    WEIGHTS = "weights"
    PROFILING = "profiling"
    """A batch of `max-num-batched-tokens` and the logits of `max-num-seqs` are tried, to see what is left for KV."""
    KV_CACHE = "kv_cache"
    GRAPH_CAPTURE = "graph_capture"
    """CUDA graphs and the sampler's warm-up, after the KV pool has taken its part."""
    SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of one attempt.

    Attributes:
        kind: What went wrong.
        stage: Where in the trial it struck.
        blame: Who caused it.
        detail: One sentence for a person.
        evidence: The lines (engine log, HTTP answers) it was told from, most telling first.
        exit_code: Exit status of the engine's leader, or of an external evaluator, when it ended by itself; negative
            for a signal.
        violation: How far the setting is from working, > 0 (for example log(needed / available) KV memory),
            or None when nothing was measured.
        retryable: Whether another attempt of the same setting may end otherwise.
        phase: For OUT_OF_MEMORY, what needed the memory; None when the log does not tell.
        facts: Numbers that the evidence states, under names that end in their unit: `needed_gib` and `available_gib`
            of memory with `short_gib` between them, `max_num_seqs`, `estimated_max_model_len` (tokens), and so on.
    """

    kind: FailureKind
    stage: Stage
    blame: Blame
    detail: str
    evidence: tuple[str, ...] = ()
    exit_code: int | None = None
    violation: float | None = None
    retryable: bool = False
    phase: MemoryPhase | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
