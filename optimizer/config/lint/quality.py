"""Rules about flags that change what the model answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from optimizer.config.lint.facts import Facts
from optimizer.config.lint.rule import Hit, LintRule
from optimizer.config.lint.setting import shown

FULL_PRECISION_KV: Final = ("auto", "float16", "bfloat16")
"""Values of `kv-cache-dtype` that keep the model's own precision (vLLM lets no other 16-bit type than the model's)."""
ONLINE_QUANTIZATION: Final = (
    "online",
    "fp8_per_tensor",
    "fp8_per_block",
    "fp8_per_channel",
    "mxfp8",
    "mxfp4",
    "int8_per_channel_weight_only",
    "nvfp4_per_token",
)
"""Values of `quantization` that quantize a full-precision checkpoint while it is loaded (`config/quantization.py`)."""


def _kv_precision(facts: Facts) -> Iterator[Hit]:
    setting = facts.given("kv-cache-dtype")
    changed = [] if setting is None else [value for value in setting.values if value not in FULL_PRECISION_KV]
    if setting is not None and changed:
        yield Hit(" and ".join(setting.holds(value) for value in changed), setting.where)


def _quantized(facts: Facts) -> Iterator[Hit]:
    """A method that is fixed and that of the checkpoint changes nothing."""
    setting, shape = facts.given("quantization"), facts.subject.shape
    if setting is None:
        return
    plain = shape is not None and shape.quantization is None
    for value in setting.values:
        if value in ONLINE_QUANTIZATION or plain or setting.is_searched:
            yield Hit(setting.holds(value), setting.where)


def _dtype(facts: Facts) -> Iterator[Hit]:
    setting = facts.given("dtype")
    if setting is not None and setting.is_searched:
        yield Hit(f"dtype is searched over {', '.join(shown(value) for value in setting.values)}", setting.where)


def _pretended(facts: Facts) -> Iterator[Hit]:
    """`fly` is a method of vLLM 0.33; 0.32 does not have it."""
    setting = facts.given("speculative-config.rejection_sample_method")
    for value in ("synthetic", "fly"):
        if setting is not None and value in setting.values:
            yield Hit(setting.holds(value), setting.where)


_COMPARE: Final = "compare answers or perplexity with those of the unchanged setting before you take it"

RULES: Final = (
    LintRule(
        "kv-cache-dtype-changes-output",
        "warning",
        "`kv-cache-dtype` is, or may be, one of fewer bits than the model's own.",
        "Keys and values are rounded, so that answers change. A search for speed sees the gain and not the loss.",
        _COMPARE,
        _kv_precision,
    ),
    LintRule(
        "quantization-changes-output",
        "warning",
        "`quantization` rounds the weights of a checkpoint that is not quantized that way, or is searched.",
        "Answers change. A search for speed sees the gain and not the loss.",
        _COMPARE,
        _quantized,
    ),
    LintRule(
        "dtype-changes-output",
        "advice",
        "`dtype` is searched.",
        "Types differ in range and precision, so that answers change between trials.",
        "fix the type that the model was made in",
        _dtype,
    ),
    LintRule(
        "speculation-changes-output",
        "error",
        "`rejection_sample_method` of `speculative-config` is `synthetic` or `fly`.",
        "`synthetic` accepts guesses by a given rate, right or wrong; `fly` accepts some that the model would not "
        "give. The throughput is not that of the model.",
        "leave it out: `standard` and `block` keep the distribution of the answers",
        _pretended,
    ),
)
