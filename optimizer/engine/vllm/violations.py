"""How far a setting is from working, from the numbers of its failure.

A violation is a logarithm, so that it adds up and compares across kinds: 0.69 for half of what is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

NO_POOL = math.log(100.0)
"""Violation of an engine that is left without any KV pool: as if it had a hundredth of what it needs."""
LEAST_VIOLATION = 0.01
"""Violation where the log, which rounds to 0.01 GiB, shows need and supply as equal."""
EMPTY_CARD_SHARE = 0.96
"""A card of which so much is free is held by nobody: driver and context take 0.5 to 1 GiB of 24 to 140."""
ALL_MEMORY_SHARE = 0.95
"""More of a host's memory than an operating system ever leaves free."""


def memory_shortage(facts: Mapping[str, float]) -> float:
    """log(needed / available)."""
    return _shortage(facts["needed_gib"], facts["available_gib"])


def context_shortage(facts: Mapping[str, float]) -> float:
    """log(context asked for / tokens that the KV pool holds)."""
    return _shortage(facts["max_model_len"], facts["kv_cache_tokens"])


def overdraft(facts: Mapping[str, float]) -> float:
    """Beyond `NO_POOL`: how much more than the memory it may use the engine takes before it has any KV pool."""
    requested = max(facts["engine_memory_gib"], 0.01)
    return NO_POOL + math.log(max(1.0, (requested - facts["left_for_kv_gib"]) / requested))


def no_pool(_facts: Mapping[str, float]) -> float:
    """Nothing is left, and the log does not say how much is missing."""
    return NO_POOL


def is_empty_card(facts: Mapping[str, float]) -> bool:
    """Whether the GPU was free, so that it is the setting which asks for more than a card ever gives."""
    return facts["available_gib"] >= EMPTY_CARD_SHARE * facts["total_gib"]


def asks_for_all_memory(facts: Mapping[str, float]) -> bool:
    """Whether the setting asks for more of the host's memory than an idle host could give."""
    return facts["needed_gib"] > ALL_MEMORY_SHARE * facts["total_gib"]


def _shortage(needed: float, available: float) -> float:
    if available <= needed / 100.0:
        return NO_POOL
    return max(math.log(needed / available), LEAST_VIOLATION)
