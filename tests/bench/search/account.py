"""A memory account of the right form whose constants are off, as the pre-screen of a study has one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from optimizer.engine.memory import MemoryPrediction
from optimizer.engine.memory.account import Range
from optimizer.search_spaces import GIB

WEIGHTS_OFF = 0.03
"""The size of the weights is read from the checkpoint; what loading adds is not."""
REST_OFF = 0.15
"""What a batch takes while it is computed is known by estimates alone."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of one launch on one device, in GiB.

    Attributes:
        requested: The share of the device that the engine takes as its own.
        weights: Of the model and, where there is one, the drafter.
        rest: Everything else but the KV pool.
        kv_per_token: Of all layers.
        context_tokens: `max-model-len`, in whole blocks.
        block_tokens: `block-size`.
    """

    requested: float
    weights: float
    rest: float
    kv_per_token: float
    context_tokens: int
    block_tokens: int

    @property
    def pool(self) -> float:
        """Left for the KV pool; below 0 where nothing is."""
        return self.requested - self.weights - self.rest

    @property
    def pool_tokens(self) -> int:
        """Whole blocks of the pool, in tokens."""
        blocks = math.floor(max(self.pool, 0.0) / (self.kv_per_token * self.block_tokens))
        return blocks * self.block_tokens

    @property
    def context(self) -> float:
        """KV of one request of the greatest length."""
        return self.context_tokens * self.kv_per_token


@dataclass(frozen=True, slots=True)
class WrongAccount:
    """Foretells memory from the true footprint times constants that are off by up to 3 and 15 %.

    Attributes:
        weights: Factor on the weights.
        rest: Factor on everything else but the KV pool.
    """

    weights: float
    rest: float

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> WrongAccount:
        """One of them."""
        return cls(1.0 + float(rng.uniform(-WEIGHTS_OFF, WEIGHTS_OFF)), 1.0 + float(rng.uniform(-REST_OFF, REST_OFF)))

    def predict(self, true: Footprint) -> MemoryPrediction:
        """In the form of the product's own account, with an interval as wide as the constants may be off."""
        weights, rest = true.weights * self.weights, true.rest * self.rest
        half = weights * WEIGHTS_OFF + rest * REST_OFF
        taken = Range(*((weights + rest + side * half) * GIB for side in (-1.0, 0.0, 1.0)))
        pool = Range(*(max(true.requested * GIB - cost, 0.0) for cost in (taken.high, taken.mid, taken.low)))
        per_token = true.kv_per_token * GIB
        tokens = Range(*(size / per_token for size in (pool.low, pool.mid, pool.high)))
        request = true.context * GIB
        return MemoryPrediction(
            requested_bytes=true.requested * GIB,
            weights_bytes=weights * GIB,
            taken_bytes=taken,
            kv_bytes_per_token=per_token,
            pool_bytes=pool,
            pool_tokens=tokens,
            max_model_len=true.context_tokens,
            request_bytes=request,
            concurrency=Range(*(size / request for size in (pool.low, pool.mid, pool.high))),
            starts=0,
        )
