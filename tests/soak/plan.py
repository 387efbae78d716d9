"""What happens to each engine of the soak, drawn from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optimizer.core.failure import FailureKind as Kind
from optimizer.engine.simulated.faults import Fault

MEASURED = "measured"
UNDER_LOAD = 40
"""Completion requests after which a fault strikes: warm-up is over by then."""

_CRASH: set[str] = {Kind.ENGINE_CRASH, Kind.UNKNOWN}
_ERRORS: set[str] = {Kind.ERROR_RATE, MEASURED}
OUTCOMES: Mapping[Fault, tuple[Mapping[str, Any], set[str]]] = {
    Fault.PORT_TAKEN: ({}, {Kind.PORT_TAKEN}),
    Fault.PORT_STOLEN: ({"amount": 0.5}, {Kind.PORT_TAKEN}),
    Fault.NEVER_READY: ({}, {Kind.ENGINE_HANG}),
    Fault.SLOW_START: ({"amount": 0.5}, {MEASURED}),
    Fault.BUSY_START: ({"amount": 0.5}, {MEASURED}),
    Fault.DIE_LOADING: ({}, _CRASH),
    Fault.KV_TOO_SMALL: ({}, {Kind.KV_CACHE_TOO_SMALL}),
    Fault.OOM_LOADING: ({}, {Kind.OUT_OF_MEMORY}),
    Fault.GPU_BUSY: ({}, {Kind.GPU_BUSY}),
    Fault.OOM_UNDER_LOAD: ({"after_requests": UNDER_LOAD}, {Kind.OUT_OF_MEMORY}),
    Fault.DIE_SERVING: ({"after_requests": UNDER_LOAD}, _CRASH),
    Fault.EXIT_SILENTLY: ({"after_requests": UNDER_LOAD}, _CRASH),
    Fault.HANG_HEALTH_200: ({"after_requests": UNDER_LOAD}, {Kind.ENGINE_HANG}),
    Fault.SLOW_HEALTH: ({"after_requests": UNDER_LOAD, "amount": 2}, {MEASURED}),
    Fault.SLOW_STREAM: ({"after_requests": UNDER_LOAD, "amount": 4}, {MEASURED}),
    Fault.SHORT_ANSWER: ({"after_requests": UNDER_LOAD}, _ERRORS),
    Fault.BUNDLED_TOKENS: ({}, {MEASURED}),
    Fault.TRUNCATED_SSE: ({"after_requests": UNDER_LOAD}, _ERRORS),
    Fault.SSE_ERROR: ({"after_requests": UNDER_LOAD}, _ERRORS),
    Fault.NO_USAGE: ({"after_requests": UNDER_LOAD}, _ERRORS),
    Fault.HTTP_500_BURST: ({"after_requests": UNDER_LOAD}, {MEASURED}),
    Fault.HTTP_503_BURST: ({"after_requests": UNDER_LOAD}, {MEASURED}),
    Fault.HTML_ANSWER: ({"after_requests": UNDER_LOAD}, _ERRORS),
    Fault.FOREIGN_MODEL: ({}, {Kind.PORT_TAKEN}),
    Fault.GARBAGE_METRICS: ({}, {MEASURED}),
    Fault.MISSING_METRIC: ({"name": "vllm:kv_cache_usage_perc"}, {MEASURED}),
    Fault.SILENT_LOG: ({}, {MEASURED}),
}
"""Fault to how it is scripted here, and what an attempt may come to."""

MODIFIERS: Mapping[Fault, Mapping[str, Any]] = {
    Fault.ESCAPE_GROUP: {},
    Fault.IGNORE_SIGTERM: {},
    Fault.DAEMON_CHILD: {"amount": 4},
    Fault.BAD_UTF8_LOG: {},
    Fault.FLOOD_LOG: {"amount": 4},
}
"""Change how an engine ends or what it writes, and not what the attempt comes to."""

KILL_GUARD = "kill the guard"
ASSAULTS = ("kill the API server", "kill EngineCore", "stop EngineCore", "cancel the attempt", KILL_GUARD)
LATEST_ASSAULT_S = 1.2
"""An undisturbed engine of the soak lives a little longer."""


@dataclass(frozen=True)
class Cycle:
    """One launch.

    Attributes:
        faults: Scripted for it, as the environment variable wants them.
        outcomes: What the attempt may come to; None when an assault makes that a matter of timing.
        assault: What is done to it from outside, or None.
        assault_after_s: Counted from the launch.
    """

    faults: tuple[Mapping[str, Any], ...]
    outcomes: set[str] | None
    assault: str | None
    assault_after_s: float

    @property
    def script(self) -> str:
        """Value of AUTOTUNE_SIM_FAULTS."""
        return json.dumps(self.faults)

    @property
    def words(self) -> str:
        """For the record."""
        names = [str(entry["fault"]) for entry in self.faults] or ["no fault"]
        after = f", {self.assault} after {self.assault_after_s:.1f} s" if self.assault else ""
        return " + ".join(names) + after


def draw_cycles(seed: int, count: int) -> list[Cycle]:
    """A third of the cycles is attacked from outside; of the rest every fault comes about equally often."""
    rng = random.Random(seed)  # noqa: S311 (repeatable, guards nothing)
    faults: list[Fault | None] = []
    cycles = []
    for _ in range(count):
        if not faults:
            faults = [None, *OUTCOMES]
            rng.shuffle(faults)
        assault = rng.choice(ASSAULTS) if rng.random() < 1 / 3 else None
        main = None if assault else faults.pop()
        script, outcomes = (None, {MEASURED}) if main is None else OUTCOMES[main]
        chosen = [] if main is None else [{"fault": main, **(script or {})}]
        chosen += [{"fault": fault, **script} for fault, script in MODIFIERS.items() if rng.random() < 1 / 6]
        cycles.append(_cycle(chosen, None if assault else outcomes, assault, rng.uniform(0.0, LATEST_ASSAULT_S)))
    return cycles


def _cycle(
    faults: Sequence[Mapping[str, Any]], outcomes: set[str] | None, assault: str | None, after_s: float
) -> Cycle:
    if assault == KILL_GUARD:
        # Without guard, environment and parent nothing on earth tells whose daemon it is.
        faults = [entry for entry in faults if entry["fault"] is not Fault.DAEMON_CHILD]
    return Cycle(tuple(faults), outcomes, assault, after_s)
