"""Rules about the search itself: parameters that cannot matter, and budgets that cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from optimizer.config.compiled_flags import compiles, is_compiled, value_count
from optimizer.config.lint.facts import Facts
from optimizer.config.lint.rule import Hit, LintRule
from optimizer.config.lint.setting import Setting, shown
from optimizer.search_spaces import FloatParameter, IntParameter

TRIALS_PER_PARAMETER: Final = 2
"""With fewer, a search cannot even see each parameter at two values, one at a time."""
FIRST_TRIALS: Final = 2
"""Baseline and defaults search nothing."""
REPEATED_VALUES: Final = 16
"""Of 20 uniform draws from 16 values 8 repeat one that came before (16 * (1 - (15/16)^20) are different); from 128
values 1 or 2 do."""


def _single_value(facts: Facts) -> Iterator[Hit]:
    """A parameter under a condition may be pinned to one value on purpose: so the flag is set only where it may be."""
    for name, parameter in facts.parameters.items():
        if value_count(parameter) == 1 and not parameter.when:
            yield Hit(f"{name} has one value: {parameter.domain}", f"parameters.{name}")


def _few_trials(facts: Facts) -> Iterator[Hit]:
    trials, parameters = facts.subject.trials, len(facts.parameters)
    if trials is None or not parameters:
        return
    needed = FIRST_TRIALS + TRIALS_PER_PARAMETER * parameters
    if trials < needed:
        yield Hit(
            f"{trials} trials, of which {max(0, trials - FIRST_TRIALS)} search {parameters} parameters",
            "trials",
            remedy=f"allow {needed} trials or more, or search fewer parameters",
        )


def _compiles_each_time(facts: Facts) -> Iterator[Hit]:
    if facts.subject.device != "gpu" or not compiles(facts.subject.flags):
        return
    for name, parameter in facts.parameters.items():
        count = value_count(parameter)
        compiled = any(is_compiled(flag) for flag in parameter.flag_names(name))
        if compiled and isinstance(parameter, IntParameter | FloatParameter) and count > REPEATED_VALUES:
            yield Hit(f"{name} ranges over {parameter.domain}: {count:g} values", f"parameters.{name}")


def _no_effect(facts: Facts) -> Iterator[Hit]:
    """Limits that the workload never reaches, and choices that vLLM treats alike."""
    for flag in ("max-num-seqs", "max-num-batched-tokens", "long-prefill-token-threshold"):
        setting, reached = facts.given(flag), _most_reached(facts, flag)
        if setting is None or not setting.is_searched or reached is None:
            continue
        limits = [number for number in setting.numbers if number > 0]
        if limits and limits[0] >= reached:
            yield Hit(
                f"{flag} is searched from {shown(limits[0])} up, and the workload never reaches more than {reached}",
                setting.where,
            )
    yield from _same_choices(facts)


def _most_reached(facts: Facts, flag: str) -> int | None:
    """The largest value at which a limit still binds, under this workload."""
    workload, traffic = facts.subject.workload, facts.traffic
    if workload is None or traffic is None:
        return None
    if traffic.in_flight is None:
        return workload.longest_prompt_tokens if flag == "long-prefill-token-threshold" else None
    return {
        "max-num-seqs": traffic.in_flight,
        "max-num-batched-tokens": traffic.in_flight * workload.longest_prompt_tokens,
        "long-prefill-token-threshold": workload.longest_prompt_tokens,
    }[flag]


def _same_choices(facts: Facts) -> Iterator[Hit]:
    policy, level = facts.given("scheduling-policy"), facts.given("optimization-level")
    if policy is not None and policy.is_searched:
        yield Hit("scheduling-policy is searched, and no request of the workload carries a priority", policy.where)
    if level is not None and _has(level, 2) and _has(level, 3):
        yield Hit("optimization-level is searched over 2 and 3, which are the same in vLLM", level.where)


def _has(setting: Setting, number: int) -> bool:
    return any(low <= number <= high for low, high in [(setting.lowest or 0, setting.highest or 0)])


RULES: Final = (
    LintRule(
        "single-value-parameter",
        "advice",
        "A parameter with one value.",
        "There is nothing to search, and the defaults (trial 1) run without it.",
        "put it under `engine.flags`, or give it more values",
        _single_value,
    ),
    LintRule(
        "too-few-trials",
        "warning",
        f"Fewer than {TRIALS_PER_PARAMETER} searching trials for each parameter; the first {FIRST_TRIALS} trials are "
        "baseline and defaults.",
        "Most parameters are then seen at one value alone, and what wins is chance.",
        "allow more trials, or search fewer parameters",
        _few_trials,
    ),
    LintRule(
        "every-trial-compiles",
        "advice",
        f"A range of more than {REPEATED_VALUES} values for a flag that is in the key of torch.compile's cache, on a "
        "GPU without `enforce-eager`.",
        "Nearly every trial meets a new value and compiles anew, which took 25 to 50 s for a 14B model on an H200.",
        "make it a `choice` of a few values, such as powers of two",
        _compiles_each_time,
    ),
    LintRule(
        "parameter-without-effect",
        "warning",
        "A searched flag that cannot matter: a limit that the workload never reaches, priorities that no request has, "
        "optimization levels 2 and 3.",
        "Trials that differ in it alone measure the same; what the search makes of the difference is noise.",
        "move the range to where the flag binds, or do not search it",
        _no_effect,
    ),
)
