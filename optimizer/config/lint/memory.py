"""Rules about memory: how much the engine may take, and how long a request may be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from optimizer.config.lint.facts import Facts
from optimizer.config.lint.model_facts import request_kv_bytes
from optimizer.config.lint.rule import Hit, LintRule
from optimizer.config.lint.setting import shown
from optimizer.search_spaces import GIB

TOO_HIGH: Final = 0.97
"""vLLM's own is 0.92. At 0.98 engines are known to start and to run out of memory under load (vLLM issue 21410), and
texts warn of 0.99; 0.97 leaves 2.4 GiB of an 80 GiB card."""
CAP_PER_P99: Final = 1.5
"""A usual context cap is 1.5 times the 99th percentile of prompt and answer together."""
FAR_ABOVE: Final = 3.0
"""How far beyond that cap counts as far: more than rounding to a power of two (up to 2) and some room to grow."""
_CAP_GRAIN_TOKENS: Final = 256
_BUS_BYTES_PER_S: Final = 63e9
"""PCIe 5.0 with 16 lanes in one direction, by its specification: no card of today is fed faster over PCIe."""


def _utilization(facts: Facts) -> Iterator[Hit]:
    """`kv-cache-memory-bytes` overrides the utilization, so it is not looked at then."""
    setting = facts.given("gpu-memory-utilization")
    if setting is None or facts.given("kv-cache-memory-bytes") is not None:
        return
    high = setting.highest
    if high is None or high < TOO_HIGH:
        return
    memory = facts.subject.device_memory_bytes
    amount = "" if memory is None else f" ({(1 - high) * memory / GIB:.1f} GiB)"
    yield Hit(
        f"{setting.up_to()}: {(1 - high) * 100:.3g} % of the memory{amount} is left for what grows under load",
        setting.where,
    )


def _generous_cap(facts: Facts) -> Iterator[Hit]:
    """Fires on a range only when every value of it is generous: the search can take a smaller one otherwise."""
    cap, traffic = facts.given("max-model-len"), facts.traffic
    if cap is None or cap.lowest is None or traffic is None:
        return
    enough = max(math.ceil(CAP_PER_P99 * traffic.p99_request_tokens), traffic.longest_request_tokens)
    if cap.lowest <= FAR_ABOVE * enough:
        return
    shape = facts.subject.shape
    kv_bytes = None if shape is None else request_kv_bytes(shape, int(cap.lowest))
    held = "" if kv_bytes is None else f"; the KV cache of one such request is {kv_bytes / GIB:.1f} GiB"
    sensible = math.ceil(enough / _CAP_GRAIN_TOKENS) * _CAP_GRAIN_TOKENS
    yield Hit(
        f"{cap.down_to()}, while 99 of 100 requests have at most {traffic.p99_request_tokens} tokens and none more "
        f"than {traffic.longest_request_tokens}{held}",
        cap.where,
        remedy=f"set it to {sensible}: {CAP_PER_P99:g} times the P99, and no less than the longest request",
    )


def _small_cap(facts: Facts) -> Iterator[Hit]:
    """Fires on a range only when no value of it will do: a study never proposes a cap that is too small."""
    cap, traffic = facts.given("max-model-len"), facts.traffic
    if cap is None or cap.highest is None or cap.highest <= 0 or traffic is None:
        return
    if cap.highest < traffic.longest_request_tokens:
        yield Hit(
            f"{cap.up_to()}, and the workload sends requests of up to {traffic.longest_request_tokens} tokens",
            cap.where,
            remedy=f"set it to {traffic.longest_request_tokens} or more, or send shorter requests",
        )


def _offloaded_weights(facts: Facts) -> Iterator[Hit]:
    objective = facts.subject.objective
    if objective is not None and objective.maximise and not facts.subject.slos:
        return
    for flag in ("cpu-offload-gb", "offload-group-size"):
        setting = facts.given(flag)
        if setting is None or not setting.highest:
            continue
        cost = ""
        if flag == "cpu-offload-gb":
            least_ms = setting.highest * GIB / _BUS_BYTES_PER_S * 1000
            cost = f": {shown(setting.highest)} GiB cross the bus in every step, which takes at least {least_ms:.0f} ms"
        yield Hit(f"{setting.up_to()}{cost}", setting.where, severity="advice" if setting.is_searched else None)


RULES: Final = (
    LintRule(
        "utilization-too-high",
        "warning",
        f"`gpu-memory-utilization` of {TOO_HIGH} or more.",
        "The engine measures its memory once, at its start. What grows later, under load, finds nothing left: it "
        "starts and then runs out of memory while it serves.",
        "stay at 0.95 or below; a smaller context cap or fewer sequences win KV cache without that risk",
        _utilization,
    ),
    LintRule(
        "context-cap-too-generous",
        "advice",
        f"`max-model-len` more than {FAR_ABOVE:g} times what the workload needs: {CAP_PER_P99:g} times its P99 length, "
        "and its longest request.",
        "vLLM reserves nothing for it, but starts only when the KV pool holds one request of that length, and admits "
        "requests so long that they push others out.",
        f"set it to {CAP_PER_P99:g} times the P99 of prompt and answer together",
        _generous_cap,
    ),
    LintRule(
        "context-cap-below-longest-request",
        "error",
        "`max-model-len` below the longest request of the workload.",
        "vLLM refuses such a request with HTTP 400, and a refused request counts as failed.",
        "set it to the longest request or more",
        _small_cap,
    ),
    LintRule(
        "weights-offloaded-under-latency-limit",
        "warning",
        "`cpu-offload-gb` or `offload-group-size` beside a latency limit, a latency objective, or none that is known.",
        "Offloaded weights cross the bus in every step, and every token waits for that.",
        "use a smaller or quantized model, or more cards",
        _offloaded_weights,
    ),
)
