"""Rules about CUDA graphs and compilation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from optimizer.config.lint.facts import Facts
from optimizer.config.lint.rule import Hit, LintRule
from optimizer.config.lint.setting import Setting
from optimizer.config.lint.vllm_defaults import LARGEST_CAPTURED_BATCH

_SIZES: Final = (
    "max-cudagraph-capture-size",
    "compilation-config.max_cudagraph_capture_size",
    "cudagraph-capture-sizes",
    "compilation-config.cudagraph_capture_sizes",
)


def _eager(facts: Facts) -> Iterator[Hit]:
    """On a CPU there are no CUDA graphs to lose; a range that also holds the other value lets the search decide."""
    if facts.subject.device != "gpu":
        return
    for flag, value in (("enforce-eager", True), ("optimization-level", 0)):
        setting = facts.given(flag)
        if setting is not None and setting.is_always(value):
            yield Hit(setting.holds(value), setting.where)


def _largest_captured(facts: Facts) -> tuple[float, str, str] | None:
    """The largest captured batch in tokens, in words, and what sets it; None when it is vLLM's own and unknown."""
    for flag in _SIZES:
        setting = facts.given(flag)
        size = None if setting is None else _largest(setting)
        if setting is not None and size is not None:
            return size, f"the largest captured batch is {size:g} ({flag})", setting.where
    if facts.given("max-num-seqs") is None:
        return None
    words = f"the largest batch that vLLM captures by itself is {LARGEST_CAPTURED_BATCH} (1024 on sm100)"
    return LARGEST_CAPTURED_BATCH, words, facts.where("max-cudagraph-capture-size")


def _largest(setting: Setting) -> float | None:
    """The largest number of a size, or of a list of sizes."""
    inner = [item for value in setting.values if isinstance(value, list) for item in value]
    numbers = [*setting.numbers, *(item for item in inner if isinstance(item, int | float))]
    return max(numbers) if numbers else None


def _small_graphs(facts: Facts) -> Iterator[Hit]:
    """A decode step holds one token of each sequence, or one and its guesses."""
    running, captured, speculation = facts.most_running(), _largest_captured(facts), facts.speculation()
    if running is None or captured is None or not facts.runs_graphs():
        return
    size, words, where = captured
    batch = running * (1 + (0 if speculation is None or speculation.optional else speculation.tokens))
    if batch > size:
        yield Hit(
            f"a decode step may hold {batch} tokens ({running} sequences), and {words}",
            where,
            remedy=f"set max-cudagraph-capture-size to {batch}, or max-num-seqs so that a step holds {size:g} or less",
        )


RULES: Final = (
    LintRule(
        "enforce-eager-left-on",
        "warning",
        "`enforce-eager`, or optimization level 0, on a GPU.",
        "It switches off CUDA graphs and compilation. It is for quick starts and debugging: each decode step then pays "
        "for launching every kernel.",
        "leave the flag out; search it if memory is so short that the graphs' share matters",
        _eager,
    ),
    LintRule(
        "cudagraph-max-below-seqs",
        "advice",
        "The largest captured CUDA graph is smaller than the decode batch can become.",
        "A larger batch runs without CUDA graphs, so that the step time jumps just when the load is highest.",
        "raise `max-cudagraph-capture-size`, or lower `max-num-seqs`",
        _small_graphs,
    ),
)
