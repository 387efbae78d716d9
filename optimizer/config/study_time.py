"""How long a study will take, told before it begins and corrected by the trials that were timed.

Before three trials were timed, figures of other machines stand in, each as a range whose ends are likely rather than
certain: a fast or a slow setting, a cold or a warm page cache. Afterwards the study's own trials tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

from optimizer.config.compiled_flags import compiles, is_compiled, value_count
from optimizer.config.study_config import StudyConfig
from optimizer.core.record import AttemptRecord, TrialRecord
from optimizer.core.trial import Stage
from optimizer.load.arrival_process import Window
from optimizer.objectives import Objective
from optimizer.objectives.capacity import MOST_PROBES, MOST_VERDICTS
from optimizer.objectives.objective import CAPACITY

FEWEST_TIMED: Final = 3
"""So many timed trials tell more than figures of other machines: fewer give no spread to speak of."""
_FIRST_TRIALS: Final = 2
"""Baseline and defaults; each may need a compilation of its own."""
_SPREAD: Final = 2.0
"""Standard deviations on either side: 95 % of a normal distribution, which a sum of many trials comes near to."""


@dataclass(frozen=True, slots=True)
class Span:
    """From the least to the most seconds that are likely."""

    low_s: float
    high_s: float

    @property
    def middle_s(self) -> float:
        """The geometric mean of the two: durations spread by factors, not by differences."""
        return math.sqrt(self.low_s * self.high_s)

    def __add__(self, other: Span) -> Span:
        return Span(self.low_s + other.low_s, self.high_s + other.high_s)

    def times(self, low: float, high: float | None = None) -> Span:
        """So many of them: at least `low`, at most `high`."""
        return Span(self.low_s * low, self.high_s * (low if high is None else high))


START_COLD_GPU: Final = Span(45.0, 90.0)
"""Launch to ready with compiled code cached: 57 and 69 s on two machines with an H200, vLLM 0.26 and a 14B model, 23 to
27 s of it imports. Weights were dummies: real ones add what reading them takes, which the page cache shortens later."""
START_WARM_GPU: Final = Span(15.0, 40.0)
"""The same, forked from a process that has imported vLLM: 18.7 s."""
COMPILE: Final = Span(25.0, 50.0)
"""What a value that torch.compile's cache has not seen adds to a start: 26, 33 and 35 to 47 s there."""
FIRST_COMPILE: Final = Span(0.0, 75.0)
"""What the first start of all adds to that: nothing where the cache is filled, 71 - 26 = 45 s there."""
START_COLD_CPU: Final = Span(20.0, 60.0)
"""A small model on two cores: 25 s with everything in the page cache."""
START_WARM_CPU: Final = Span(4.0, 8.0)
"""The same, forked from a process that has imported vLLM: 4.3 to 6.3 s in 15 trials of `tiny-cpu`."""
START_SIMULATED: Final = Span(0.5, 3.0)
"""It imports no vLLM: the start of one Python."""
STOP: Final = Span(0.3, 3.0)
"""0.3 to 0.7 s from SIGTERM to the last process gone, on CPU and GPU; 2.5 s where a worker is slow to go."""
LEAST_WARM_UP_S: Final = 1.0
"""The shortest warm-up of `tiny-cpu`: 1.1 s."""
LEAST_EDGES_S: Final = 1.0
"""Ramp and drain last about one slow request each; a fast setting needs less than half a second for one."""
MOST_LOADS: Final = 1 + MOST_PROBES + MOST_VERDICTS
"""Load runs in which a capacity is sought: the saturated engine, short looks, and rates that get a verdict."""
FEWEST_LOADS: Final = 2
"""The saturated engine and one rate."""

_STAGES: Final = {
    "start": Stage.LAUNCHING,
    "warm-up": Stage.WARMING_UP,
    "ramp, window and drain": Stage.MEASURING,
    "stop": Stage.STOPPING,
}
_STAGES_OF_EVALUATOR: Final = {"evaluator": Stage.MEASURING, "stop": Stage.STOPPING}
"""What an external evaluator does before and after it measures, nobody tells."""


@dataclass(frozen=True, slots=True)
class TimePart:
    """One part of the trials that are still to run.

    Attributes:
        name: Such as `start` or `window`.
        each: Seconds each time.
        total: Seconds in all.
    """

    name: str
    each: Span
    total: Span


@dataclass(frozen=True, slots=True)
class StudyTime:
    """What the rest of a study takes.

    Attributes:
        trials: Trials still to run.
        timed: Earlier trials that the figures rest on; 0 when they are those of other machines.
        trial: Seconds of one trial; its high end includes a compilation where there may be one.
        total: Seconds of all.
        parts: Where they go.
    """

    trials: int
    timed: int
    trial: Span
    total: Span
    parts: tuple[TimePart, ...]

    @property
    def dominant(self) -> TimePart:
        """The part that takes most of the time."""
        return max(self.parts, key=lambda part: part.total.middle_s)


def estimate_study_time(config: StudyConfig, trials: Iterable[TrialRecord] = ()) -> StudyTime:
    """Estimates the rest of a study.

    Args:
        config: The study.
        trials: Its trials so far, in any state.
    """
    final = [trial for trial in trials if trial.state.is_final]
    left = max(0, config.trials - len(final))
    stages = _STAGES if config.evaluator is None else _STAGES_OF_EVALUATOR
    timed = [attempt for trial in final for attempt in trial.attempts[-1:] if _is_complete(attempt, stages)]
    if len(timed) >= FEWEST_TIMED:
        return _from_trials(left, final, timed, stages)
    return _from_other_machines(config, left, begun=bool(final))


def _is_complete(attempt: AttemptRecord, stages: Mapping[str, Stage]) -> bool:
    """Whether it measured: one that failed tells nothing of the window."""
    durations = {timing.stage: timing.duration_s for timing in attempt.stages}
    return attempt.failure is None and all(durations.get(stage) is not None for stage in stages.values())


def _from_trials(
    left: int, final: Sequence[TrialRecord], timed: Sequence[AttemptRecord], stages: Mapping[str, Stage]
) -> StudyTime:
    """Predicts the sum of `left` further trials from those so far, failed and rejected ones included.

    A sum of n further values of variance v, told from k earlier ones, is off by sqrt(n v + n^2 v / k): their own
    scatter, and that of the mean. It is no less than n times the shortest.
    """
    whole = [_seconds(trial) for trial in final]
    off = _SPREAD * stdev(whole) * math.sqrt(left + left**2 / len(whole))
    total = Span(max(left * min(whole), left * fmean(whole) - off), left * fmean(whole) + off)
    parts = tuple(_timed_part(name, stage, left, timed) for name, stage in stages.items())
    return StudyTime(left, len(timed), Span(min(whole), max(whole)), total, parts)


def _timed_part(name: str, stage: Stage, left: int, timed: Sequence[AttemptRecord]) -> TimePart:
    seconds = [
        t.duration_s for attempt in timed for t in attempt.stages if t.stage is stage and t.duration_s is not None
    ]
    mean = fmean(seconds)
    return TimePart(name, Span(min(seconds), max(seconds)), Span(mean, mean).times(left))


def _seconds(trial: TrialRecord) -> float:
    """Time of all its attempts; one that was interrupted and never ended counts as nothing."""
    return sum((a.ended_at - a.started_at).total_seconds() for a in trial.attempts if a.ended_at is not None)


def _from_other_machines(config: StudyConfig, left: int, *, begun: bool) -> StudyTime:
    workload, window = config.workload, config.workload.window
    each_trial = {
        "start": _start(config),
        "warm-up": Span(LEAST_WARM_UP_S, max(LEAST_WARM_UP_S, workload.warmup.max_s / 2)),
        **_load(window, Span(LEAST_EDGES_S, max(LEAST_EDGES_S, workload.warmup.max_s)), config.objective),
        "stop": STOP,
    }
    if config.evaluator is not None:
        # Most start an engine for each trial and load it as we do; the trials themselves tell soon.
        each_trial = {"evaluator": _sum(each_trial.values())}
    parts = [TimePart(name, span, span.times(left)) for name, span in each_trial.items()]
    trial = _sum(each_trial.values())
    if _may_compile(config):
        fewest, most = expected_compilations(config, left)
        total = COMPILE.times(fewest, most) + (Span(0.0, 0.0) if begun else FIRST_COMPILE)
        parts.insert(1, TimePart("compilation", COMPILE, total))
        trial = Span(trial.low_s, trial.high_s + COMPILE.high_s)
    return StudyTime(left, 0, trial, _sum(part.total for part in parts), tuple(parts))


def _load(window: Window, edges: Span, objective: Objective) -> dict[str, Span]:
    """The load of one trial: one window, or for a capacity one at each rate that its search tries.

    How many those are depends on the engine, and how long each takes on its rate. The high end is an upper bound: as
    many rates as a search may try, each verdict with the longest window.
    """
    if objective.metric != CAPACITY:
        return {"window": Span(window.min_s, window.max_s), "ramp and drain": edges}
    looks, verdicts = MOST_LOADS - MOST_VERDICTS, MOST_VERDICTS
    windows = Span(FEWEST_LOADS * window.min_s, looks * window.min_s + verdicts * window.max_s)
    return {
        f"windows at up to {MOST_LOADS - 1} rates": windows,
        "ramps and drains": edges.times(FEWEST_LOADS, MOST_LOADS),
    }


def _sum(spans: Iterable[Span]) -> Span:
    return sum(spans, Span(0.0, 0.0))


def _start(config: StudyConfig) -> Span:
    if config.engine.kind == "simulated":
        return START_SIMULATED
    if config.engine.device == "cpu":
        return START_WARM_CPU if config.engine.warm_start else START_COLD_CPU
    return START_WARM_GPU if config.engine.warm_start else START_COLD_GPU


def _may_compile(config: StudyConfig) -> bool:
    return config.engine.kind == "vllm" and compiles(config.fixed_flags)


def expected_compilations(config: StudyConfig, trials: int) -> tuple[float, float]:
    """Fewest and most starts, of so many trials, that meet a setting which torch.compile's cache has not seen.

    Most: proposals drawn at random from the G settings that differ in flags of the cache's key; of n draws
    G * (1 - (1 - 1/G)^n) differ. Fewest: half of that, since a search comes back to what was good. Baseline and
    defaults are settings of their own.
    """
    settings = 1.0
    for name, parameter in config.space.parameters.items():
        if any(is_compiled(flag) for flag in parameter.flag_names(name)):
            settings *= value_count(parameter)
    first = min(trials, _FIRST_TRIALS)
    searched = trials - first
    different = _different(settings, searched)
    return min(trials, 1 + different / 2), first + different


def _different(settings: float, draws: int) -> float:
    """Expected number of different ones among uniform draws."""
    if settings == 1 or math.isinf(settings):
        return min(draws, settings)
    return -settings * math.expm1(draws * math.log1p(-1.0 / settings))
