"""The simulated engine's scheduler under load, in virtual time."""

from __future__ import annotations

import math

import numpy as np

from optimizer.core.measurement import FloatArray, IntArray
from optimizer.engine.simulated.scheduler import Scheduler
from optimizer.engine.simulated.step import SchedulerLimits
from optimizer.engine.simulated.step_time import StepTimeModel
from optimizer.load.arrival_process import ArrivalProcess, ClosedLoop, GammaArrivals, PoissonArrivals
from tests.bench.capacity_scenes import Lengths, Scene

_AT_A_TIME = 1024
_BLOCK_TOKENS = 16


class VirtualEngine:
    """One load on one engine, played as far as it is asked for; the same seed gives the same requests at any rate.

    Args:
        scene: The engine and the lengths of the requests.
        arrivals: A closed loop, or Poisson or gamma arrivals.
        seed: Of lengths and arrivals.
    """

    def __init__(self, scene: Scene, arrivals: ArrivalProcess, *, seed: int) -> None:
        blocks = math.ceil(scene.pool_tokens / _BLOCK_TOKENS) + 1
        limits = SchedulerLimits(
            scene.max_num_seqs,
            scene.max_num_batched_tokens,
            scene.max_model_len,
            _BLOCK_TOKENS,
            blocks,
            enable_prefix_caching=False,
        )
        self._scheduler = Scheduler(limits, StepTimeModel())
        self._arrivals = arrivals
        self._scene = scene
        self._rng = [np.random.default_rng((seed, stream)) for stream in range(3)]
        self._lengths: list[tuple[int, int]] = []
        self._due_s: list[float] = []
        self._first_s: list[float] = []
        self._last_s: list[float] = []
        self._next_s: list[float] = []
        self._now_s, self._ended = 0.0, 0
        if isinstance(arrivals, ClosedLoop):
            for _ in range(arrivals.in_flight):
                self._send(0.0)

    def requests(self, until_s: float, *, drained: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
        """When each request was due, had its first and last token: those due before a time, NaN for what is not yet.

        Args:
            until_s: How far to play.
            drained: Play on until every request that was due by then has ended.
        """
        self._play(until_s)
        due = self.due_before(until_s)
        while drained and any(math.isnan(last_s) for last_s in self._last_s[:due]):
            self._step()
        first_s, last_s = np.array(self._first_s[:due]), np.array(self._last_s[:due])
        return np.array(self._due_s[:due]), first_s, last_s

    def due_before(self, until_s: float) -> int:
        """How many requests were due before a time."""
        self._play(until_s)
        return int(np.searchsorted(np.array(self._due_s), until_s))

    def ended_s(self, requests: int) -> float:
        """When so many requests have ended."""
        while self._ended < requests:
            self._step()
        return self._now_s

    def _play(self, until_s: float) -> None:
        while self._now_s < until_s:
            self._step()

    def _step(self) -> None:
        open_loop = not isinstance(self._arrivals, ClosedLoop)
        while open_loop and self._peek_s() <= self._now_s:
            self._send(self._next_s.pop())
        if not self._scheduler.has_work:
            self._now_s = self._peek_s()
            return
        step = self._scheduler.schedule()
        self._now_s += step.duration_s
        for output in self._scheduler.complete(step):
            number = int(output.request_id)
            if math.isnan(self._first_s[number]):
                self._first_s[number] = self._now_s
            if output.finished:
                self._last_s[number] = self._now_s
                self._ended += 1
                if not open_loop:
                    self._send(self._now_s)

    def _send(self, due_s: float) -> None:
        number = len(self._due_s)
        while number >= len(self._lengths):
            self._draw()
        prompt, answer = self._lengths[number]
        self._scheduler.add(str(number), [1] * prompt, answer)
        self._due_s.append(due_s)
        self._first_s.append(math.nan)
        self._last_s.append(math.nan)

    def _draw(self) -> None:
        prompts, answers = (
            drawn(of, rng)
            for of, rng in zip((self._scene.prompt_tokens, self._scene.output_tokens), self._rng[:2], strict=True)
        )
        self._lengths += list(zip(prompts.tolist(), answers.tolist(), strict=True))

    def _peek_s(self) -> float:
        """When the next request of an open loop is due."""
        if not self._next_s:
            if not isinstance(self._arrivals, PoissonArrivals | GammaArrivals):
                raise ValueError(f"arrivals of kind {self._arrivals.kind} are not played")
            shape = self._arrivals.burstiness if isinstance(self._arrivals, GammaArrivals) else 1.0
            gaps_s = self._rng[2].gamma(shape, 1.0 / (shape * self._arrivals.rate_per_s), _AT_A_TIME)
            last_s = self._due_s[-1] if self._due_s else 0.0
            self._next_s = (last_s + np.cumsum(gaps_s))[::-1].tolist()
        return self._next_s[-1]


def drawn(lengths: Lengths, rng: np.random.Generator) -> IntArray:
    """A block of lengths in tokens."""
    if lengths.sigma is None:
        return rng.integers(lengths.low, lengths.high + 1, _AT_A_TIME)
    values = np.round(lengths.median * np.exp(rng.normal(0.0, lengths.sigma, _AT_A_TIME)))
    return np.clip(values, lengths.low, lengths.high).astype(np.int64)
