"""A small model of an engine that batches continuously, and its fit to what clients saw of a real one.

All running requests get a token in each step. A step takes some time, and more the more requests run; a prompt holds
all of them up in proportion to its length. Requests wait in order of arrival while every slot is taken. This is
processor sharing with a limit on who shares, as vLLM's scheduler does it with chunked prefill while its KV pool is
large enough. A request costs two events, not one for each token: 3 us of CPU time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from optimizer.core.measurement import FloatArray, IntArray

KNOWN_METRICS = ("ttft", "e2e", "tpot")
"""Latencies that the model has. The gaps between tokens it has not: all of a batch are equal there."""
FEWEST_TO_FIT = 50
"""Requests with more than one token that a fit needs."""
_TO_FIRST_TOKEN = 1.5
"""Steps from admission to the first token: half of one that is under way, and its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Requests in order of arrival.

    Attributes:
        due_s: When each is due, shape (n,), never falling.
        prompt_tokens: Shape (n,).
        output_tokens: Shape (n,), >= 1.
    """

    due_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray

    def only(self, which: slice | npt.NDArray[np.bool_]) -> Traffic:
        """Some of the requests."""
        return Traffic(self.due_s[which], self.prompt_tokens[which], self.output_tokens[which])

    def then(self, after: Traffic, *, from_s: float) -> Traffic:
        """These requests, and others whose times count from `from_s`."""
        return Traffic(
            np.concatenate([self.due_s, from_s + after.due_s]),
            np.concatenate([self.prompt_tokens, after.prompt_tokens]),
            np.concatenate([self.output_tokens, after.output_tokens]),
        )


@dataclass(frozen=True, slots=True)
class ShadowEngine:
    """The model. A step with n running requests takes `step_s` + n `s_per_request` + n^2 `s_per_request2`.

    Attributes:
        slots: Requests that run at a time.
        step_s: What a step takes whatever runs.
        s_per_request: For each running request.
        s_per_request2: For the square of their number.
        s_per_prompt_token: What a token of a prompt adds to one step.
    """

    slots: int
    step_s: float
    s_per_request: float
    s_per_request2: float
    s_per_prompt_token: float

    def slower(self, times: float) -> ShadowEngine:
        """The same engine, all of whose times are so many times as long."""
        seconds = (self.step_s, self.s_per_request, self.s_per_request2, self.s_per_prompt_token)
        return ShadowEngine(self.slots, *(times * each_s for each_s in seconds))

    def latencies_s(self, traffic: Traffic, metric: str) -> FloatArray:
        """One of `KNOWN_METRICS` of each request that has it, in order of schedule; the engine begins empty."""
        first_s, last_s = self._play(traffic)
        if metric == "tpot":
            many = traffic.output_tokens > 1
            per_token_s: FloatArray = (last_s - first_s)[many] / (traffic.output_tokens[many] - 1)
            return per_token_s
        latencies_s: FloatArray = (first_s if metric == "ttft" else last_s) - traffic.due_s
        return latencies_s

    def _play(self, traffic: Traffic) -> tuple[FloatArray, FloatArray]:
        """When each request has its first and its last token, shape (n,) each."""
        due_s, answers, slots = traffic.due_s.tolist(), traffic.output_tokens.tolist(), self.slots
        prompts_s = (self.s_per_prompt_token * traffic.prompt_tokens).tolist()
        one_s = [self.step_s + n * (self.s_per_request + n * self.s_per_request2) for n in range(slots + 1)]
        first_s, last_s = [0.0] * len(due_s), [0.0] * len(due_s)
        # A running request is known by how many steps the engine will have made when it ends.
        running: list[tuple[float, int]] = []
        now_s = steps = held_up_s = step_s = ends_s = 0.0
        came = admitted = 0
        while running or came < len(due_s):
            if running:
                step_s = one_s[len(running)]
                ends_s = now_s + held_up_s + (running[0][0] - steps) * step_s
            if running and (came == len(due_s) or due_s[came] >= ends_s):
                steps, number = heappop(running)
                now_s, held_up_s, last_s[number] = ends_s, 0.0, ends_s
            else:
                if running:
                    passed_s = due_s[came] - now_s
                    steps += max(passed_s - held_up_s, 0.0) / step_s
                    held_up_s = max(held_up_s - passed_s, 0.0)
                now_s, came = due_s[came], came + 1
            while admitted < came and len(running) < slots:
                held_up_s += prompts_s[admitted]
                first_s[admitted] = now_s + held_up_s + _TO_FIRST_TOKEN * one_s[len(running) + 1]
                heappush(running, (steps + _TO_FIRST_TOKEN - 1.0 + answers[admitted], admitted))
                admitted += 1
        # First tokens are foretold at admission: where others end before, an only token may come sooner than that.
        first, last = np.array(first_s), np.array(last_s)
        return first, np.maximum(first, last)


@dataclass(frozen=True, slots=True, eq=False)
class FitRows:
    """What some requests tell of the times in the model: `took_s` is `of` times these, as they stand in `ShadowEngine`.

    Attributes:
        of: Shape (n, 4).
        took_s: From first to last token, shape (n,); both weighted as if the tokens of a request erred independently.
    """

    of: FloatArray
    took_s: FloatArray


def fit_rows(
    traffic: Traffic,
    first_s: FloatArray,
    last_s: FloatArray,
    *,
    running: int | None = None,
    within_s: tuple[float, float] = (-np.inf, np.inf),
) -> FitRows:
    """What requests that all ended well tell.

    Args:
        traffic: The requests.
        first_s: When each had its first token, shape (n,).
        last_s: When each had its last, shape (n,).
        running: How many ran all the time, where that is known; else they are counted.
        within_s: Where they are counted only requests between these times tell: others may have run beside some that
            are not in `traffic`.
    """
    steps, took_s = (traffic.output_tokens - 1).astype(np.float64), last_s - first_s
    tells = (steps > 0.0) & (took_s > 0.0)
    if running is None:
        beside = _mean_running(first_s, last_s)
        tells &= (first_s >= within_s[0]) & (last_s <= within_s[1])
    else:
        beside = np.full(steps.size, float(running))
    of = np.stack([steps, steps * beside, steps * beside**2, _prompts_meanwhile(traffic, first_s, last_s)], axis=1)
    weights = 1.0 / np.sqrt(steps[tells])
    return FitRows(of[tells] * weights[:, None], took_s[tells] * weights)


def _mean_running(first_s: FloatArray, last_s: FloatArray) -> FloatArray:
    """How many requests ran on average between the first and the last token of each, itself included."""
    times_s = np.concatenate([first_s, last_s])
    order = np.argsort(times_s, kind="stable")
    at_s, counts = times_s[order], np.cumsum(np.where(order < first_s.size, 1.0, -1.0))
    request_s = np.concatenate([[0.0], np.cumsum(counts[:-1] * np.diff(at_s))])
    mean: FloatArray = np.interp(last_s, at_s, request_s) - np.interp(first_s, at_s, request_s)
    mean /= np.maximum(last_s - first_s, 1e-9)
    return mean


def _prompts_meanwhile(traffic: Traffic, first_s: FloatArray, last_s: FloatArray) -> FloatArray:
    """Tokens of the prompts that were computed between the first and the last token of each request."""
    order = np.argsort(first_s, kind="stable")
    tokens, began_s = np.concatenate([[0.0], np.cumsum(traffic.prompt_tokens[order])]), first_s[order]
    until, before = (np.searchsorted(began_s, at_s, side="right") for at_s in (last_s, first_s))
    meanwhile: FloatArray = tokens[until] - tokens[before]
    return meanwhile


def fitted(rows: Sequence[FitRows], slots: int) -> ShadowEngine | None:
    """The model by least squares, no time below 0; None where too few requests tell, or none took time."""
    from scipy.optimize import nnls  # takes a second to load, and only a search needs it

    of, took_s = np.concatenate([some.of for some in rows]), np.concatenate([some.took_s for some in rows])
    if took_s.size < FEWEST_TO_FIT:
        return None
    times_s = [float(time_s) for time_s in nnls(of, took_s)[0]]
    return ShadowEngine(slots, *times_s) if sum(times_s[:3]) > 0.0 else None
