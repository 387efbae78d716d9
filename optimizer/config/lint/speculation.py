"""Rules about speculative decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from optimizer.config.lint.facts import Facts
from optimizer.config.lint.rule import Hit, LintRule

BUSY_STEP_TOKENS: Final = 160
"""Up to some tokens a step, decoding waits for the weights to be read and further tokens are free; beyond, each one
costs time. In 16-bit weights a token is 2 operations on 2 bytes, so that number is operations per second over bytes per
second: 153 on an A100 (312e12 / 2.04e12), 206 on an H200 (989e12 / 4.8e12), 295 on an H100 (989e12 / 3.35e12), by
their data sheets. 160 is 32 sequences with four guesses each, the concurrency that texts give."""


def _busy(facts: Facts) -> Iterator[Hit]:
    speculation, running = facts.speculation(), facts.most_running()
    if speculation is None or running is None:
        return
    step = running * (1 + speculation.tokens)
    if step <= BUSY_STEP_TOKENS:
        return
    verb = "may be on" if speculation.optional else "is on"
    yield Hit(
        f"speculative decoding {verb} with up to {running} requests running: {running} x (1 + {speculation.tokens} "
        f"guesses) is {step} tokens a step, and from some {BUSY_STEP_TOKENS} on each token costs time",
        speculation.where,
        severity="advice" if speculation.optional else None,
    )


def _dummy_weights(facts: Facts) -> Iterator[Hit]:
    speculation, load = facts.speculation(), facts.given("load-format")
    if speculation is None or load is None or not load.is_always("dummy"):
        return
    verb = "may be on" if speculation.optional else "is on"
    yield Hit(
        f"speculative decoding {verb} with load-format dummy",
        speculation.where,
        severity="advice" if speculation.optional else None,
    )


RULES: Final = (
    LintRule(
        "speculation-at-high-concurrency",
        "warning",
        f"Speculative decoding with more than {BUSY_STEP_TOKENS} tokens in a decode step, guesses included: as many as "
        "32 requests with four guesses each.",
        "Guesses are free while a step waits for memory. With many requests the step is bound by computing, and each "
        "rejected guess takes time from another request.",
        "use it for few requests at a time, or guess fewer tokens",
        _busy,
    ),
    LintRule(
        "speculation-on-dummy-weights",
        "warning",
        "Speculative decoding with random weights (`load-format` dummy).",
        "Random weights answer in loops, or at random: the share of accepted guesses says nothing of a real model.",
        "measure speculation with real weights alone",
        _dummy_weights,
    ),
)
