"""How many tokens the KV pool holds, from what engines reported of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.tuning.greybox.engine_flags import EngineFlags
from optimizer.tuning.greybox.facts import ServingFacts

_OVERHEAD_SD = 0.25
"""Of what is taken beside weights and pool, relative to weights and overhead together."""
_BATCHED_SD_BYTES = 2e5
"""Activations of one token of the budget: some hundred kB of a model of ten billion parameters."""
_NOISE = 0.01
_LEAST_POOL_TOKENS = 16.0
_UNKNOWN_POOL_TOKENS = 1e9


@dataclass(frozen=True, slots=True)
class Pool:
    """Tokens of the pool under given flags.

    Attributes:
        facts: Of the study.
        overhead_bytes: Taken beside weights and pool, on one device.
        batched_bytes: The same for each token of `max-num-batched-tokens` above vLLM's own.
        typical_tokens: Of the pools that were seen, for a model whose KV cache is not known; None without any.
    """

    facts: ServingFacts
    overhead_bytes: float
    batched_bytes: float
    typical_tokens: float | None

    def tokens(self, flags: EngineFlags) -> FloatArray:
        """Shape (n,)."""
        facts = self.facts
        if not facts.kv_bytes_per_token or facts.weights_bytes is None or facts.device_bytes is None:
            return np.full(flags.seqs.shape, self.typical_tokens or _UNKNOWN_POOL_TOKENS)
        taken = facts.weights_bytes / flags.ranks + self.overhead_bytes + self.batched_bytes * _extra(flags, facts)
        free = np.where(
            np.isfinite(flags.pool_bytes), flags.pool_bytes, flags.memory_share * facts.device_bytes - taken
        )
        tokens: FloatArray = np.maximum(
            free / (facts.kv_bytes_per_token * flags.kv_scale / flags.ranks), _LEAST_POOL_TOKENS
        )
        return tokens


def fitted_pool(flags: EngineFlags, reported_tokens: Sequence[float | None], facts: ServingFacts) -> Pool:
    """The pool as the account foretells it, corrected by what engines reported (Bayesian linear regression)."""
    seen = np.array([np.nan if tokens is None else tokens for tokens in reported_tokens], dtype=np.float64)
    positive = seen[(seen > 0) & np.isfinite(seen)]
    typical = float(np.median(positive)) if positive.size else None
    prior = np.array([facts.overhead_bytes or 0.0, 0.0])
    if not facts.kv_bytes_per_token or facts.weights_bytes is None or facts.device_bytes is None:
        return Pool(facts, float(prior[0]), float(prior[1]), typical)
    rows = (seen > 0) & np.isfinite(seen) & np.isfinite(flags.memory_share)
    held = seen * facts.kv_bytes_per_token * flags.kv_scale / flags.ranks
    taken = flags.memory_share * facts.device_bytes - facts.weights_bytes / flags.ranks - held
    design = np.column_stack([np.ones(len(seen)), _extra(flags, facts)])[rows]
    noise = _NOISE * facts.device_bytes * np.maximum(flags.memory_share[rows], 0.1)
    sd = np.array([_OVERHEAD_SD * (facts.weights_bytes + prior[0]) + 1e6, _BATCHED_SD_BYTES])
    precision = (design / noise[:, None]).T @ (design / noise[:, None]) + np.diag(sd**-2)
    weighed = (design / noise[:, None] ** 2).T @ (taken[rows] - design @ prior)
    overhead, batched = prior + np.linalg.solve(precision, weighed)
    return Pool(facts, float(overhead), float(batched), typical)


def _extra(flags: EngineFlags, facts: ServingFacts) -> FloatArray:
    return flags.batched_tokens - float(facts.default_max_num_batched_tokens or 0)
