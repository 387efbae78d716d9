"""What a search is tried on: a space, limits, a workload, and an engine whose every answer is an equation.

The engine models here share no code and no equations with `optimizer.tuning`: a surrogate that is judged by its own
equations proves nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from optimizer.core.engine_config import EngineConfig, FlagValue
from optimizer.core.failure import FailureKind, MemoryPhase
from optimizer.core.record import ParamValue
from optimizer.core.trial import Stage, TrialRole
from optimizer.search_spaces import BUILT_IN_RULES, Rule, SearchSpace
from optimizer.tuning.greybox.facts import ServingFacts
from tests.bench.search.account import Footprint, WrongAccount

ENGINE = "virtual"
MODEL = "virtual-model"


@dataclass(frozen=True, slots=True)
class Crash:
    """Why an engine model gives no answer.

    Attributes:
        kind: As the product would classify it.
        stage: Where it strikes.
        violation: log(needed / there), > 0; None where nothing is lacking.
        detail: One sentence.
        phase: For OUT_OF_MEMORY.
    """

    kind: FailureKind
    stage: Stage
    violation: float | None
    detail: str
    phase: MemoryPhase | None = None


@dataclass(frozen=True, slots=True)
class Truth:
    """What a setting is worth without noise: metrics named as in `status --json`, or a crash."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    crash: Crash | None = None


class EngineModel(Protocol):
    """An engine on a machine under a workload."""

    def truth(self, flags: Mapping[str, FlagValue]) -> Truth:
        """The noise-free answer; depends on the flags alone."""

    def footprint(self, flags: Mapping[str, FlagValue]) -> Footprint:
        """What a launch takes of memory, part by part."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of one run, as standard deviations in log units.

    Attributes:
        throughput: Of throughput.
        latency: Of every latency.
        seen: Share of the variance that the intervals know of: what differs between two runs and not within one is
            not seen in one.
        residuals: Where they are known, how runs lay about their mean, metric by metric; one is drawn for each run.
    """

    throughput: float = 0.03
    latency: float = 0.05
    seen: float = 0.7
    residuals: tuple[Mapping[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Situation:
    """One instance: a machine, a model, a workload and limits, drawn from a seed.

    Attributes:
        name: Of the kind.
        seed: That drew it.
        space: What is searched.
        baseline: The user's present setting, as params of the space.
        metric: What is sought.
        maximise: Its direction.
        limits: Metric name to the largest value allowed, in the metric's unit; `error_rate` is one of them.
        engine: Answers.
        account: A memory account whose constants are off.
        facts: What is known beforehand.
        noise: Of one run.
        rules: Those of vLLM and of the space that a setting of the space can break.
    """

    name: str
    seed: int
    space: SearchSpace
    baseline: Mapping[str, ParamValue]
    metric: str
    maximise: bool
    limits: Mapping[str, float]
    engine: EngineModel
    account: WrongAccount
    facts: ServingFacts
    noise: Noise = Noise()
    rules: tuple[Rule, ...] = field(init=False)

    def __post_init__(self) -> None:
        # A rule holds while a flag that it names is not set: the others never break. This is asked very often.
        settable = {flag for name, p in self.space.parameters.items() for flag in p.flag_names(name)}
        rules = tuple(rule for rule in (*BUILT_IN_RULES, *self.space.rules) if settable.issuperset(rule.flags))
        object.__setattr__(self, "rules", rules)

    @property
    def key(self) -> str:
        """Such as `tight-p99/3`."""
        return f"{self.name}/{self.seed}"

    def flags(self, params: Mapping[str, ParamValue]) -> dict[str, FlagValue]:
        """What the params set."""
        return self.space.flags(params, device_memory_bytes=self.facts.device_bytes)

    def config(self, params: Mapping[str, ParamValue]) -> EngineConfig:
        """What would be launched."""
        return EngineConfig(engine=ENGINE, model=MODEL, flags=self.flags(params))

    def broken_rules(self, params: Mapping[str, ParamValue]) -> tuple[str, ...]:
        """The rules that the params break, as they were written."""
        flags = self.flags(params)
        return tuple(rule.text for rule in self.rules if rule.broken_by(flags) is not None)

    def truth(self, params: Mapping[str, ParamValue]) -> Truth:
        """The noise-free answer to a setting."""
        return self.engine.truth(self.flags(params))

    def assessed(self, params: Mapping[str, ParamValue]) -> Truth | None:
        """The noise-free answer; None where a rule is broken."""
        flags = self.flags(params)
        if any(rule.broken_by(flags) is not None for rule in self.rules):
            return None
        return self.engine.truth(flags)

    def excess(self, truth: Truth) -> float:
        """By how much the worst limit is exceeded, as a share of it; at most 0 where all hold."""
        return max(truth.metrics[name] / limit - 1.0 for name, limit in self.limits.items())

    def worth(self, truth: Truth) -> float:
        """The objective, larger is better; -inf for a crash or a broken limit."""
        if truth.crash is not None or self.excess(truth) > 0.0:
            return -np.inf
        return self.value(truth)

    def value(self, truth: Truth) -> float:
        """The objective, larger is better, whatever the limits."""
        value = truth.metrics[self.metric]
        return value if self.maximise else 1.0 / value

    def role(self, number: int) -> TrialRole:
        """Trial 0 is the baseline and trial 1 vLLM's defaults, as in the product."""
        return {0: TrialRole.BASELINE, 1: TrialRole.DEFAULT}.get(number, TrialRole.SEARCH)


def rng_of(*words: str | int) -> np.random.Generator:
    """A generator that depends on these words alone, on every platform."""
    return np.random.default_rng([zlib.crc32(str(word).encode()) for word in words])
