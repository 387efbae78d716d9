"""Rules about prefix caching and the prefixes that the workload shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from optimizer.config.lint.facts import Facts
from optimizer.config.lint.rule import Hit, LintRule

WORTH_TELLING: Final = 0.05
"""Share of a prompt's computed tokens: less is lost in the run-to-run noise of a measurement, which is some 5 %."""


def _match_unit(facts: Facts) -> tuple[tuple[int, ...], str] | None:
    """Sizes that a hit can be a multiple of, and what sets them.

    Only whole blocks are found again. `prefix-match-unit` is finer, but vLLM takes it for models with several groups of
    KV cache alone and refuses it otherwise.
    """
    for flag in ("prefix-match-unit", "block-size"):
        setting = facts.setting(flag)
        if setting is not None and setting.numbers:
            return tuple(int(number) for number in setting.numbers), setting.where
    return None


def _alignment(facts: Facts) -> Iterator[Hit]:
    """Fires on a range of block sizes only when no size of it fits: the search takes one that does otherwise."""
    caching, unit, traffic = facts.setting("enable-prefix-caching"), _match_unit(facts), facts.traffic
    if (
        traffic is None
        or not traffic.shared_prefix_tokens
        or unit is None
        or caching is None
        or caching.is_always(False)
    ):
        return
    sizes, where = unit
    prefix = traffic.shared_prefix_tokens
    size = min(sizes, key=lambda candidate: prefix % candidate)
    lost = prefix % size
    if lost / (lost + traffic.mean_prompt_tokens) < WORTH_TELLING:
        return
    whole = prefix // size
    blocks = "no block" if whole == 0 else "1 block" if whole == 1 else f"{whole} blocks"
    aligned = prefix - lost if lost < prefix else size
    yield Hit(
        f"the shared prefix of {prefix} tokens is {blocks} of {size} and {lost} tokens more, which every request "
        "computes again",
        where,
        remedy=f"make the prefix {aligned} or {prefix - lost + size} tokens long, or search smaller blocks",
    )


def _caching_off(facts: Facts) -> Iterator[Hit]:
    caching, traffic = facts.given("enable-prefix-caching"), facts.traffic
    if caching is None or not caching.is_always(False) or traffic is None or not traffic.shared_prefix_tokens:
        return
    block = facts.setting("block-size")
    smallest = 16 if block is None or block.lowest is None else block.lowest
    prefix, own = traffic.shared_prefix_tokens, traffic.mean_prompt_tokens
    if prefix >= smallest:
        share = 100 * prefix / (prefix + own)
        yield Hit(
            f"{caching.holds(False)}, and requests share {prefix} tokens: {share:.0f} % of all prompt tokens are "
            "computed anew each time",
            caching.where,
        )


def _nothing_to_find(facts: Facts) -> Iterator[Hit]:
    """Token content is drawn anew for each trial, so without a shared prefix no prompt meets an earlier one."""
    traffic = facts.traffic
    if traffic is None or traffic.shared_prefix_tokens:
        return
    for flag in ("enable-prefix-caching", "prefix-caching-hash-algo"):
        setting = facts.given(flag)
        if setting is not None and setting.is_searched:
            yield Hit(f"{flag} is searched, and no two prompts of the workload begin alike", setting.where)


RULES: Final = (
    LintRule(
        "prefix-not-block-aligned",
        "advice",
        "The length of the shared prefix is no multiple of the block size, and what is over is at least "
        f"{100 * WORTH_TELLING:g} % of the tokens that a request computes.",
        "Only whole blocks of a prefix are found again. A prefix shorter than a block is never found.",
        "pad or cut the prefix to whole blocks, or take smaller blocks",
        _alignment,
    ),
    LintRule(
        "prefix-caching-off-with-shared-prefix",
        "warning",
        "Prefix caching is switched off, and the requests of the workload share a prefix.",
        "The shared tokens are computed for every request. vLLM's own default is on.",
        "leave the flag out, or search it",
        _caching_off,
    ),
    LintRule(
        "prefix-caching-without-shared-prefix",
        "advice",
        "Prefix caching is searched, and the requests of the workload share no prefix.",
        "Trials that differ in it alone measure the same; what the search makes of the difference is noise.",
        "give the workload the `shared_prefix` that your traffic has, or do not search the flag",
        _nothing_to_find,
    ),
)
