"""What requests ask of the KV pool: what they find there, what they hold of it, how many it holds."""

from __future__ import annotations

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.tuning.greybox.engine_flags import EngineFlags
from optimizer.tuning.greybox.facts import ServingFacts

_MANY = 1e6
_PRESSURE_POWER = 8.0
"""An open loop outgrows its pool only where that is full: at nine tenths of it four times in ten."""


def known_hit_share(flags: EngineFlags, facts: ServingFacts) -> FloatArray:
    """Share of prompt tokens that the prefix cache holds: whole blocks of the shared prefix and of repeated turns."""
    repeated = np.maximum(facts.repeated_tokens_mean - flags.block_tokens / 2.0, 0.0)
    hits = (_whole_blocks(flags, facts) + repeated) * flags.caching
    share: FloatArray = np.minimum(hits / facts.prompt_tokens_mean, 1.0 - 1.0 / facts.prompt_tokens_mean)
    return np.maximum(share, 0.0)


def outgrown_share(flags: EngineFlags, pool_tokens: FloatArray, facts: ServingFacts) -> FloatArray:
    """How far the requests that may run outgrow the pool (0 where they fit), times the share of it that grows."""
    wanted = np.minimum(flags.seqs, _MANY if facts.in_flight is None else float(facts.in_flight))
    over = np.maximum(1.0 - fitting_requests(flags, pool_tokens, facts) / wanted, 0.0)
    grown = facts.output_tokens_mean / (facts.prompt_tokens_mean + facts.output_tokens_mean)
    outgrown: FloatArray = over * np.minimum(1.0, 2.0 * grown)
    return outgrown


def pool_pressure(running: FloatArray, most_running: FloatArray) -> FloatArray:
    """How often an open loop fills the room that there is, from 0 to 1."""
    pressure: FloatArray = np.clip(running / most_running, 0.0, 1.0) ** _PRESSURE_POWER
    return pressure


def fitting_requests(flags: EngineFlags, pool_tokens: FloatArray, facts: ServingFacts) -> FloatArray:
    """Requests that the pool holds at once."""
    shared = facts.shared_prefixes * _whole_blocks(flags, facts) * flags.caching
    fitting: FloatArray = np.maximum((pool_tokens - shared) / held_tokens(flags, facts), 1.0)
    return fitting


def held_tokens(flags: EngineFlags, facts: ServingFacts) -> FloatArray:
    """Tokens of the pool that a running request holds for itself: half of its answer, half a block open."""
    alone = facts.prompt_tokens_mean - _whole_blocks(flags, facts) * flags.caching
    held: FloatArray = np.maximum(alone, 1.0) + (facts.output_tokens_mean + flags.block_tokens) / 2.0
    return held


def _whole_blocks(flags: EngineFlags, facts: ServingFacts) -> FloatArray:
    """Tokens of the shared prefix in whole blocks."""
    whole: FloatArray = np.floor(facts.shared_prefix_tokens / flags.block_tokens) * flags.block_tokens
    return whole
