"""The model that gets the same traffic as the engine: its limits, its traffic, and what it is told of a load run."""

from __future__ import annotations

from itertools import islice
from typing import Final, Self

import numpy as np

from optimizer.core.measurement import IntArray, LoadResult
from optimizer.load import ClosedLoop, Workload
from optimizer.load.arrival_process import PoissonArrivals
from optimizer.load.arrivals import window_offsets_s
from optimizer.objectives import Limit
from optimizer.objectives.headroom import Crossing
from optimizer.objectives.latencies import latencies
from optimizer.objectives.shadow import LONG_REQUESTS, SHORT_REQUESTS, Heard, Shadow, TailLimit
from optimizer.objectives.shadow_engine import KNOWN_METRICS, FitRows, Traffic, fit_rows
from optimizer.objectives.shadow_verdict import Expectation, expectation
from optimizer.tuning.capacity_level import requests_to_relax

_SEED: Final = 20_011
"""Of what the model alone gets; any would do."""
_LENGTHS_DRAWN: Final = 200_000
_LONG_OF_ALLOWED: Final = 60_000
"""A long run of the model has so many times the requests in which one may be over the limit: fewer for a median."""
_AFTER: Final = 2000
"""Requests that the model gets after the counted ones: the load, too, goes on until these have ended."""
_UNCERTAIN_END: Final = 0.5
"""Compared are requests that were due by so many P99 before the window closed: those after it are not the same."""
_MOST_SKIPPED: Final = 0.25
"""Of the requests that could be compared."""


class EndlessTraffic:
    """Very many requests as a workload sends them, the same ones at every rate.

    Args:
        workload: Its arrivals are an open loop, or a closed one in place of which Poisson arrivals come.
        seen: Requests that were sent. Lengths are drawn from these where the workload does not draw them itself.
    """

    def __init__(self, workload: Workload, seen: Traffic) -> None:
        arrivals = workload.arrivals
        if isinstance(arrivals, ClosedLoop):
            arrivals = PoissonArrivals(kind="poisson", rate_per_s=1.0)
        arrivals = arrivals.model_copy(update={"rate_per_s": 1.0})
        self._due_s = np.fromiter(islice(window_offsets_s(arrivals, _SEED, None), LONG_REQUESTS), np.float64)
        rng = np.random.default_rng(_SEED)
        lengths = _lengths(workload, seen, rng)
        self._prompts, self._answers = lengths[rng.integers(0, len(lengths), LONG_REQUESTS)].T

    def __call__(self, rate_per_s: float, requests: int) -> Traffic:
        """The first so many, at exactly that rate on average."""
        due_s = self._due_s[:requests]
        return Traffic(
            due_s * (due_s.size / due_s[-1] / rate_per_s), self._prompts[:requests], self._answers[:requests]
        )

    def after(self, rate_per_s: float, number: int) -> Traffic:
        """What comes after the window of load run `number`: others for each run."""
        end = LONG_REQUESTS - number * _AFTER
        which = slice(end - _AFTER, end)
        due_s = (self._due_s[which] - self._due_s[end - _AFTER - 1]) / rate_per_s
        return Traffic(due_s, self._prompts[which], self._answers[which])


def _lengths(workload: Workload, seen: Traffic, rng: np.random.Generator) -> IntArray:
    """Prompt and output tokens, shape (n, 2)."""
    prompts, answers = workload.prompt_tokens, workload.output_tokens
    if prompts is None or answers is None or workload.writes_text or workload.structured_output is not None:
        return np.stack([seen.prompt_tokens, seen.output_tokens], axis=1)
    shared = 0 if workload.shared_prefix is None else workload.shared_prefix.tokens
    return np.array([(shared + prompts.draw(rng), answers.draw(rng)) for _ in range(_LENGTHS_DRAWN)])


class EngineShadow:
    """The model beside one engine.

    Args:
        shadow: The model.
        endless: What it gets alone.
    """

    def __init__(self, shadow: Shadow, endless: EndlessTraffic) -> None:
        self._shadow = shadow
        self._endless = endless
        fewest = min(limit.allowed for limit in shadow.limits)
        self._long = min(LONG_REQUESTS, round(_LONG_OF_ALLOWED / fewest))

    @classmethod
    def of(
        cls,
        limits: tuple[Limit, ...],
        workload: Workload,
        saturated: LoadResult,
        in_flight: int,
        max_num_seqs: int | None,
    ) -> Self | None:
        """The model of an engine that was seen saturated; None where the model does not know a limit, or nothing ended.

        Args:
            limits: What must hold.
            workload: The traffic.
            saturated: A closed loop.
            in_flight: Its requests under way.
            max_num_seqs: The engine's, where it is known.
        """
        known = tail_limits(limits)
        if known is None or not saturated.ok.any():
            return None
        slots = _most_running(saturated) if max_num_seqs is None else max_num_seqs
        if not isinstance(workload.arrivals, ClosedLoop) and workload.arrivals.most_in_flight is not None:
            slots = min(slots, workload.arrivals.most_in_flight)
        endless = EndlessTraffic(workload, _traffic(saturated))
        shadow = Shadow(known, slots, endless)
        shadow.learn(_rows(saturated, min(slots, in_flight)))
        return cls(shadow, endless)

    def learn(self, load: LoadResult, rate_per_s: float, served_per_s: float, number: int) -> None:
        """What the engine did at a rate, in load run `number`."""
        if load.ok.any():
            self._shadow.learn(_rows(load), self.heard(load, rate_per_s, served_per_s, number))

    def knee(self, served_per_s: float, *, roughly: bool) -> Crossing | None:
        """Where the first limit is used up; roughly from shorter runs of the model, in a sixth of the time."""
        requests = self._long * SHORT_REQUESTS // LONG_REQUESTS if roughly else self._long
        return self._shadow.knee(served_per_s, requests=requests)

    def expectation(self, rate_per_s: float, tolerance: float) -> Expectation | None:
        """What the model does at a rate."""
        return expectation(self._shadow, rate_per_s, tolerance, requests=self._long)

    def heard(self, load: LoadResult, rate_per_s: float, served_per_s: float, number: int) -> Heard:
        """What the engine made of load run `number`, or of it so far.

        Left out is the beginning, before which it had requests that the model did not get, until as many requests
        have passed as a queue remembers and those of the beginning have ended.
        """
        counted, lasts_s = _traffic(load), _p99_s(load)
        last = int(np.searchsorted(counted.due_s, load.window_s - _UNCERTAIN_END * lasts_s))
        known = tuple(latencies(load, limit.metric).known_ms[:last] / 1000.0 for limit in self._shadow.limits)
        begun = max(requests_to_relax(rate_per_s, served_per_s), int(np.searchsorted(counted.due_s, lasts_s)))
        skipped = min(begun, int(_MOST_SKIPPED * min(values_s.size for values_s in known)))
        whole = counted.then(self._endless.after(rate_per_s, number), from_s=load.window_s)
        return Heard(whole, known, skipped)


def tail_limits(limits: tuple[Limit, ...]) -> tuple[TailLimit, ...] | None:
    """The limits as the model knows them; None where it does not know one: a mean, or gaps between tokens."""
    known = tuple(
        TailLimit(limit.slo.metric, limit.slo.percent, limit.limit_ms / 1000.0)
        for limit in limits
        if limit.slo.percent is not None and limit.slo.metric in KNOWN_METRICS and not limit.own
    )
    return known if known and len(known) == len(limits) else None


def _traffic(load: LoadResult) -> Traffic:
    """The counted requests of a load run; one whose answer has not ended is taken to be of mean length."""
    mean = round(float(load.output_tokens[load.ok].mean())) if load.ok.any() else 1
    answers = np.maximum(np.where(load.ok, load.output_tokens, mean), 1)
    return Traffic(load.scheduled_s - load.window_start_s, load.prompt_tokens, answers)


def _rows(load: LoadResult, running: int | None = None) -> FitRows:
    """What the requests that ended well tell of the model's times; `running` of them ran all the time, where known."""
    ok = load.ok
    first_s, last_s = (at_s[ok] - load.window_start_s for at_s in (load.first_token_s, load.last_token_s))
    within_s = (_p99_s(load), load.window_s)
    return fit_rows(_traffic(load).only(ok), first_s, last_s, running=running, within_s=within_s)


def _p99_s(load: LoadResult) -> float:
    return float(np.percentile(load.e2e_s, 99.0)) if load.ok.any() else 0.0


def _most_running(load: LoadResult) -> int:
    """Most requests that were between their first and their last token at a time, >= 1."""
    times_s = np.concatenate([load.first_token_s[load.ok], load.last_token_s[load.ok]])
    change = np.where(np.argsort(times_s, kind="stable") < times_s.size // 2, 1, -1)
    return max(1, int(np.cumsum(change).max()))
