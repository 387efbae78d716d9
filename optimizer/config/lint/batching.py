"""Rules about the scheduler's limits: sequences and tokens in one step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from optimizer.config.lint.facts import Facts
from optimizer.config.lint.rule import Hit, LintRule
from optimizer.config.lint.setting import shown

MANY_CHUNKS: Final = 4
"""Each further chunk of a prompt waits for one more step and reads all weights again. Of five chunks or more, at least
four fifths are such."""
FAR_ABOVE: Final = 2.0
"""By default vLLM captures CUDA graphs for twice `max-num-seqs` (`_set_cudagraph_sizes`), so a limit of up to twice the
requests in flight changes nothing that is not changed already."""


def _below_seqs(facts: Facts) -> Iterator[Hit]:
    """vLLM's SchedulerConfig; where `max-num-seqs` is not set, vLLM lowers it by itself."""
    seqs, batched = facts.given("max-num-seqs"), facts.setting("max-num-batched-tokens")
    if seqs is None or batched is None or seqs.lowest is None or batched.highest is None:
        return
    if batched.highest < seqs.lowest:
        yield Hit(
            f"{batched.up_to()} and {seqs.down_to()}",
            batched.where,
            remedy=f"raise it to {shown(seqs.lowest)} or more, or lower max-num-seqs",
        )


def _needed_tokens(facts: Facts, running: int) -> tuple[float, str]:
    """Tokens a step needs to keep so many requests running, and how they come about.

    Each running request takes one token a step, or one and its guesses. Of N running ones with O tokens of answer,
    N / O end in each step, and as many prompts of P computed tokens must come in: N + N * P / O in all. Without a
    workload P and O are not known, and decoding may take half of the step.
    """
    speculation = facts.speculation()
    decode = running * (1 + (0 if speculation is None or speculation.optional else speculation.tokens))
    traffic = facts.traffic
    if traffic is None:
        return 2.0 * decode, f"{running} sequences take {decode} tokens of every step, more than half of it"
    prompt = traffic.computed_prompt_tokens(traffic.mean_prompt_tokens, facts.block_tokens())
    refill = running * prompt / traffic.mean_output_tokens
    return decode + refill, (
        f"{running} running requests take {decode} tokens of every step, and {refill:.0f} more go to the prompts "
        "of those that follow them"
    )


def _tokens_for_seqs(facts: Facts) -> Iterator[Hit]:
    """In a space the largest values are paired: when even they do not fit, raising the sequences is of no use."""
    seqs, batched, running = facts.given("max-num-seqs"), facts.setting("max-num-batched-tokens"), facts.most_running()
    if seqs is None or batched is None or running is None or batched.highest is None:
        return
    needed, reason = _needed_tokens(facts, running)
    if running <= batched.highest < needed:
        yield Hit(
            f"{batched.up_to()}: {reason}",
            batched.where,
            remedy=f"raise max-num-batched-tokens to {math.ceil(needed / 256) * 256} or more, or lower max-num-seqs",
        )


def _chunks(facts: Facts) -> Iterator[Hit]:
    """Not under a limit on TPOT or ITL: there small chunks are the way to keep it."""
    batched, running, traffic = facts.given("max-num-batched-tokens"), facts.most_running(), facts.traffic
    if batched is None or batched.highest is None or running is None or traffic is None:
        return
    left = batched.highest - running
    if left <= 0 or facts.seeks_latency("tpot", "itl"):
        return
    prompt = traffic.computed_prompt_tokens(traffic.median_prompt_tokens, facts.block_tokens())
    chunks = math.ceil(prompt / left)
    if chunks > MANY_CHUNKS:
        yield Hit(
            f"{batched.up_to()}: beside {running} running requests, a median prompt of {prompt:.0f} tokens to compute "
            f"takes {chunks} steps",
            batched.where,
            remedy=f"raise it to {math.ceil((running + prompt / MANY_CHUNKS) / 256) * 256} or more",
        )


def _seqs_above_load(facts: Facts) -> Iterator[Hit]:
    """A range may reach as far as vLLM's own value, so that the two can be compared."""
    seqs, traffic = facts.given("max-num-seqs"), facts.traffic
    if seqs is None or seqs.highest is None or traffic is None or traffic.in_flight is None:
        return
    usual = seqs.usual if seqs.is_searched and isinstance(seqs.usual, int | float) else 0
    if seqs.highest > max(FAR_ABOVE * traffic.in_flight, usual):
        yield Hit(
            f"{seqs.up_to()}, and the workload never has more than {traffic.in_flight} requests in flight",
            seqs.where,
            remedy=f"stay at {int(FAR_ABOVE * traffic.in_flight)} or below, or raise the workload's in_flight",
        )


def _no_chunking(facts: Facts) -> Iterator[Hit]:
    setting = facts.given("enable-chunked-prefill")
    if setting is not None and False in setting.values:
        yield Hit(setting.holds(False), setting.where)


RULES: Final = (
    LintRule(
        "batched-tokens-below-seqs",
        "error",
        "`max-num-batched-tokens`, set or vLLM's own, below `max-num-seqs`.",
        "Each sequence takes a token of every step; vLLM refuses to start.",
        "raise `max-num-batched-tokens`, or lower `max-num-seqs`",
        _below_seqs,
    ),
    LintRule(
        "seqs-without-batched-tokens",
        "warning",
        "`max-num-seqs` raised, and `max-num-batched-tokens` too small to keep so many requests running.",
        "Decoding is scheduled first and leaves too little of the step for prompts, so that new requests queue and the "
        "raised limit is never reached.",
        "raise both together",
        _tokens_for_seqs,
    ),
    LintRule(
        "prompt-in-many-chunks",
        "warning",
        f"`max-num-batched-tokens` so small that a median prompt takes more than {MANY_CHUNKS} steps, with no limit "
        "on TPOT or ITL.",
        "TTFT is at least that many steps, and each of them reads all weights again.",
        "raise `max-num-batched-tokens`; small chunks serve TPOT and ITL alone",
        _chunks,
    ),
    LintRule(
        "seqs-above-in-flight",
        "advice",
        f"`max-num-seqs` more than {FAR_ABOVE:g} times the requests that a closed loop keeps in flight.",
        "So many sequences never run, but buffers, sampler warm-up and CUDA graphs for them take memory from the KV "
        "cache; trials that differ in nothing else measure the same.",
        "lower it, or raise the load",
        _seqs_above_load,
    ),
    LintRule(
        "chunked-prefill-turned-off",
        "warning",
        "`enable-chunked-prefill` is off, or may be.",
        "vLLM itself warns that models which generate text do not officially support it, and that they may crash or "
        "give wrong output; one long prompt then holds up all others for a whole step.",
        "leave the flag out; tune `max-num-batched-tokens` and `long-prefill-token-threshold` instead",
        _no_chunking,
    ),
)
