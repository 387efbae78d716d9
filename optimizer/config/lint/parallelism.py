"""Rules about several cards: tensor, pipeline, data and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from optimizer.config.lint.facts import Facts
from optimizer.config.lint.model_facts import weights_bytes
from optimizer.config.lint.rule import Hit, LintRule
from optimizer.config.lint.setting import shown
from optimizer.search_spaces import GIB

WEIGHTS_SHARE: Final = 0.5
"""A model fits one card well when its weights take no more than half of what vLLM may use there: as much is left for
the KV cache as for the weights."""


def _heads(facts: Facts) -> Iterator[Hit]:
    """vLLM's ModelConfig.verify_with_parallel_config."""
    setting, shape = facts.given("tensor-parallel-size"), facts.subject.shape
    if setting is None or shape is None:
        return
    for size in setting.numbers:
        if size >= 1 and shape.query_heads % size:
            yield Hit(
                f"{setting.holds(size)}, and the model's {shape.query_heads} attention heads are no multiple of it",
                setting.where,
            )


def _cards(facts: Facts) -> Iterator[Hit]:
    """Within one host: an engine on Ray or on several nodes may have more."""
    devices, backend = facts.subject.devices, facts.given("distributed-executor-backend")
    nodes = facts.given("nnodes")
    if facts.subject.device != "gpu" or devices is None or (backend is not None and "ray" in backend.values):
        return
    if nodes is not None and (nodes.highest or 1) > 1:
        return
    local = "data-parallel-size-local"
    replicas = local if facts.given(local) is not None else "data-parallel-size"
    settings = [facts.given(flag) for flag in ("tensor-parallel-size", "pipeline-parallel-size", replicas)]
    present = [setting for setting in settings if setting is not None and setting.highest is not None]
    needed = 1
    for setting in present:
        needed *= int(setting.highest or 1)
    if needed > devices:
        sizes = " and ".join(setting.up_to() for setting in present)
        yield Hit(f"{sizes}: that takes {needed} cards, and there {_are(devices)}", present[0].where)


def _are(devices: int) -> str:
    return "is 1" if devices == 1 else f"are {devices}"


def _fits_one_card(facts: Facts) -> Iterator[Hit]:
    """Not where a latency is sought: there tensor parallelism can be right for a model that fits one card."""
    setting, shape, memory = facts.given("tensor-parallel-size"), facts.subject.shape, facts.subject.device_memory_bytes
    if setting is None or shape is None or memory is None or facts.subject.device != "gpu":
        return
    if (setting.lowest or 1) <= 1 or facts.seeks_latency("ttft", "tpot", "itl", "e2e"):
        return
    utilization = facts.setting("gpu-memory-utilization")
    usable = memory * ((utilization and utilization.lowest) or 1.0)
    weights = weights_bytes(shape)
    if weights <= WEIGHTS_SHARE * usable:
        size = shown(setting.lowest)
        yield Hit(
            f"{setting.down_to()}, and the weights ({weights / GIB:.1f} GiB) take no more than half of one "
            f"card ({usable / GIB:.1f} GiB usable)",
            setting.where,
            remedy=f"run {size} engines on one card each (data-parallel-size {size}); keep tensor parallelism for a "
            "latency that one card cannot reach",
        )


def _pipeline(facts: Facts) -> Iterator[Hit]:
    setting = facts.given("pipeline-parallel-size")
    if setting is None or (setting.lowest or 1) <= 1 or not facts.seeks_latency("ttft", "tpot", "itl", "e2e"):
        return
    yield Hit(f"{setting.down_to()} beside a latency limit or objective", setting.where)


def _dense_experts(facts: Facts) -> Iterator[Hit]:
    """vLLM's ModelConfig._verify_with_expert_parallelism."""
    setting, shape = facts.given("enable-expert-parallel"), facts.subject.shape
    if setting is not None and True in setting.values and shape is not None and shape.experts is None:
        yield Hit(f"{setting.holds(True)}, and the model has no experts", setting.where)


RULES: Final = (
    LintRule(
        "tp-not-dividing-heads",
        "error",
        "`tensor-parallel-size` does not divide the model's attention heads.",
        "vLLM refuses to start.",
        "take a size that divides them, such as a power of two",
        _heads,
    ),
    LintRule(
        "more-cards-than-present",
        "error",
        "Tensor, pipeline and data parallelism together take more cards than there are.",
        "vLLM refuses to start.",
        "lower one of the sizes",
        _cards,
    ),
    LintRule(
        "tp-on-model-that-fits-one-card",
        "warning",
        "`tensor-parallel-size` above 1 for a model whose weights take no more than half of one card, where throughput "
        "is sought without a latency limit.",
        "Every layer ends in an exchange between the cards. As many engines on one card each do without.",
        "run one engine per card (`data-parallel-size`)",
        _fits_one_card,
    ),
    LintRule(
        "pp-for-latency",
        "advice",
        "`pipeline-parallel-size` above 1 beside a latency limit or objective.",
        "A token passes all stages one after another: the pipeline adds throughput and memory, and takes no time off a "
        "token.",
        "use tensor parallelism within a host; keep the pipeline for models that fit in no other way",
        _pipeline,
    ),
    LintRule(
        "expert-parallel-on-dense-model",
        "error",
        "`enable-expert-parallel` for a model without experts.",
        "vLLM refuses to start.",
        "leave the flag out",
        _dense_experts,
    ),
)
