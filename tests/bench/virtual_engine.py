"""The simulated engine's scheduler under load, in virtual time."""

from __future__ import annotations

import math
from collections import defaultdict, deque

import numpy as np

from optimizer.core.measurement import FloatArray, IntArray
from optimizer.engine.simulated.step_time import StepTimeModel
from optimizer.load.arrival_process import ArrivalProcess, ClosedLoop, GammaArrivals, PoissonArrivals
from tests.bench.capacity_scenes import Lengths, Scene

_AT_A_TIME = 1024
_BLOCK_TOKENS = 16


class VirtualEngine:
    """One load on one engine, played as far as it is asked for; the same seed gives the same requests at any rate.

    Where the KV pool holds whatever can run at a time and one step takes a token of each running request, a step is
    known from how many decode, how much context they have and which prompt is half computed. So it costs the same
    whatever the batch, and the times are those of the simulated engine's own scheduler to the last bit.

    Args:
        scene: The engine and the lengths of the requests.
        arrivals: A closed loop, or Poisson or gamma arrivals.
        seed: Of lengths and arrivals.

    Raises:
        ValueError: The engine may preempt, or not decode all that runs in one step.
    """

    def __init__(self, scene: Scene, arrivals: ArrivalProcess, *, seed: int) -> None:
        _check(scene)
        self._arrivals = arrivals
        self._scene = scene
        self._step_time = StepTimeModel()
        self._rng = [np.random.default_rng((seed, stream)) for stream in range(4)]
        self._lengths: list[tuple[int, int]] = []
        self._due_s: list[float] = []
        self._first_s: list[float] = []
        self._last_s: list[float] = []
        self._next_s: list[float] = []
        self._now_s, self._ended, self._steps = 0.0, 0, 0
        self._waiting: deque[int] = deque()
        self._half_computed: tuple[int, int] | None = None
        """Request whose prompt did not fit into a step, and how much of it is computed."""
        self._decoding, self._context_tokens = 0, 0
        self._ending: defaultdict[int, list[int]] = defaultdict(list)
        """Requests by the step that gives them their last token."""
        self._stall_at_s = self._until_stall_s()
        if isinstance(arrivals, ClosedLoop):
            for _ in range(arrivals.in_flight):
                self._send(0.0)

    def tokens(self, requests: int) -> tuple[IntArray, IntArray]:
        """Prompt and output tokens of the first so many requests."""
        prompts, answers = np.array(self._lengths[:requests], dtype=np.int64).reshape(-1, 2).T
        return prompts, answers

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
        if not self._decoding and not self._waiting and self._half_computed is None:
            self._now_s = self._peek_s()
            return
        prompts_done, prefill_tokens, read_tokens = self._prefill()
        step_s = self._step_time.step_s(
            prefill_tokens=prefill_tokens, decode_seqs=self._decoding, kv_tokens_read=self._context_tokens + read_tokens
        )
        self._now_s += step_s * (1.0 + self._scene.crowding * (self._decoding / self._scene.max_num_seqs) ** 2)
        if self._now_s >= self._stall_at_s:
            self._now_s += self._scene.stall_s
            self._stall_at_s = self._now_s + self._until_stall_s()
        self._context_tokens += self._decoding
        ended = self._ending.pop(self._steps, [])
        for number in ended:
            prompt, answer = self._lengths[number]
            self._context_tokens -= prompt + answer - 1
        self._decoding -= len(ended)
        for number in prompts_done:
            self._first_s[number] = self._now_s
            prompt, answer = self._lengths[number]
            if answer == 1:
                ended.append(number)
            else:
                self._decoding += 1
                self._context_tokens += prompt
                self._ending[self._steps + answer - 1].append(number)
        self._steps += 1
        self._ended += len(ended)
        for number in ended:
            self._last_s[number] = self._now_s
            if not open_loop:
                self._send(self._now_s)

    def _until_stall_s(self) -> float:
        often = self._scene.stalls_per_s
        return float(self._rng[3].exponential(1.0 / often)) if often else math.inf

    def _prefill(self) -> tuple[list[int], int, int]:
        """Prompts that this step ends, tokens of prompts that it computes, and context that these read."""
        budget = self._scene.max_num_batched_tokens - self._decoding
        free, done, read_tokens = self._scene.max_num_seqs - self._decoding, [], 0
        half, self._half_computed = self._half_computed, None
        left = budget
        while left > 0 and free > 0 and (half is not None or self._waiting):
            number, computed = half or (self._waiting.popleft(), 0)
            half, free, read_tokens = None, free - 1, read_tokens + computed
            count = min(self._lengths[number][0] - computed, left)
            left -= count
            if computed + count == self._lengths[number][0]:
                done.append(number)
            else:
                self._half_computed = (number, computed + count)
        return done, budget - left, read_tokens

    def _send(self, due_s: float) -> None:
        number = len(self._due_s)
        while number >= len(self._lengths):
            self._draw()
        self._waiting.append(number)
        self._due_s.append(due_s)
        self._first_s.append(math.nan)
        self._last_s.append(math.nan)

    def _draw(self) -> None:
        prompts, answers = (
            drawn(of, rng)
            for of, rng in zip((self._scene.prompt_tokens, self._scene.output_tokens), self._rng[:2], strict=True)
        )
        room = self._scene.max_model_len - prompts
        self._lengths += list(zip(prompts.tolist(), np.minimum(answers, room).tolist(), strict=True))

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


def _check(scene: Scene) -> None:
    longest = min(scene.prompt_tokens.high + scene.output_tokens.high, scene.max_model_len)
    blocks = math.ceil(longest / _BLOCK_TOKENS) * scene.max_num_seqs
    if blocks > scene.pool_tokens // _BLOCK_TOKENS or scene.max_num_seqs >= scene.max_num_batched_tokens:
        raise ValueError(f"{scene.name}: the engine may run short of KV blocks, or of tokens in a step")


def drawn(lengths: Lengths, rng: np.random.Generator) -> IntArray:
    """A block of lengths in tokens."""
    if lengths.sigma is None:
        return rng.integers(lengths.low, lengths.high + 1, _AT_A_TIME)
    values = np.round(lengths.median * np.exp(rng.normal(0.0, lengths.sigma, _AT_A_TIME)))
    return np.clip(values, lengths.low, lengths.high).astype(np.int64)
