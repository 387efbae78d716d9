"""The prefix cache's hit rate that was observed, against the one that the traffic implies."""

from __future__ import annotations

LEAST_DIFFERENCE = 0.05
OF_EXPECTED = 0.1
"""Smaller differences come from the first use of each prefix and from the mix of requests in one window."""
LOST_SHARE = 0.05
"""Of a shared beginning; what is lost beyond its last whole block is told from here on."""


def hit_rate_notes(
    observed: float | None, expected: float | None, *, shared_tokens: int | None = None, block_tokens: int | None = None
) -> tuple[str, ...]:
    """What a person should know of the prefix cache; nothing when it did as the traffic implies.

    Args:
        observed: Share of the prompt tokens that the cache answered; None when it is off or was not asked.
        expected: The share that the workload implies on a warm cache with room; None when it cannot be told.
        shared_tokens: Length of the beginnings that requests share.
        block_tokens: Tokens of one KV block: only whole blocks are cached.
    """
    if observed is None:
        return ()
    notes: list[str] = []
    if expected is not None and abs(observed - expected) > max(LEAST_DIFFERENCE, OF_EXPECTED * expected):
        figures = f"prefix-cache hits are {observed:.0%} where the traffic implies {expected:.0%}"
        if observed > expected:
            notes.append(f"{figures}: another run with the same prompts warmed the cache, or prompts repeat")
        else:
            notes.append(f"{figures}: blocks were thrown out before they were used again, or never kept")
    if shared_tokens is not None and block_tokens:
        lost = shared_tokens % block_tokens
        if lost > LOST_SHARE * shared_tokens:
            notes.append(
                f"a shared beginning of {shared_tokens} tokens ends {lost} tokens into a KV block of {block_tokens}: "
                f"these {lost} are computed for every request"
            )
    return tuple(notes)
