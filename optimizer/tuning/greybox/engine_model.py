"""An engine in its steady state: how long a step takes, how many requests share it, how long one of them lasts.

A step reads the weights and the KV cache of what it decodes and computes every token in it; what is added to that is
an overhead. A request takes some steps of prefill and one step for each token that it decodes (or for several, where
guesses are accepted). From that follow the rate of requests, and by Little's law the time that each of them takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.tuning.greybox.engine_flags import EngineFlags
from optimizer.tuning.greybox.facts import ServingFacts
from optimizer.tuning.greybox.kv_demand import fitting_requests, known_hit_share, outgrown_share, pool_pressure

_OVERLAP_GPU = 3.0
_OVERLAP_CPU = 1.0
"""Power of the smooth maximum of reading weights and computing: on a card they overlap, on a core they add up."""
_BUDGET_SHARPNESS = 6.0
_FILLING_TOKENS = 128.0
"""A card computes so many tokens more than a step has, as its tiles are not filled."""
_WITHOUT_GRAPHS = 2.0
"""Overhead of a step whose kernels are launched one by one, over that of a captured one."""
_DRAFT_SHARE = 0.08
"""Of a step's reading of weights, for each token that a draft model guesses."""
_MOST_LOG = 50.0
_ROUNDS = 4
_OPEN_ROUNDS = 2
_LEAST_RUNNING = 0.05
_MOST_LOAD = 0.97
_HALF_WINDOW_S = 60.0
"""A queue that grows is seen for some two minutes, and half of that is its mean wait."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What traffic and trials tell of requests, apart from the time they take.

    Attributes:
        facts: Traffic, model and device.
        acceptance: Chance that a guessed token is accepted when those before it are, per launch, shape (n,).
        hidden_hits: Share of prompt tokens that the prefix cache holds beyond the known prefix and repeated turns.
        preemption: Preemptions of a request for each share by which the running requests outgrow the pool.
    """

    facts: ServingFacts
    acceptance: FloatArray
    hidden_hits: float
    preemption: float


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady state; arrays broadcast from coefficients and launches, times in seconds.

    Attributes:
        requests_per_s: That end.
        running: In the batch, mean.
        step_s: Mean step.
        mixed_step_s: Mean step with prefill in it.
        mixed_share: Of the steps, those with prefill in them.
        decode_s: From the first token of a request to its last, mean.
        ttft_s: Time to first token, mean.
        queue_s: Of that, before the request is first scheduled.
        decode_steps: Steps from first to last token.
        preemptions: Of one request, mean.
        recompute_s: Time that a preempted request loses.
    """

    requests_per_s: FloatArray
    running: FloatArray
    step_s: FloatArray
    mixed_step_s: FloatArray
    mixed_share: FloatArray
    decode_s: FloatArray
    ttft_s: FloatArray
    queue_s: FloatArray
    decode_steps: FloatArray
    preemptions: FloatArray
    recompute_s: FloatArray


@dataclass(frozen=True, slots=True)
class _Work:
    """What one request asks of the engine under each launch, shape (n,) each."""

    computed: FloatArray
    steps: FloatArray
    prefill_steps: FloatArray
    context: FloatArray
    most_running: FloatArray
    preemptions: FloatArray


def steady_state(
    coefficients: FloatArray,
    flags: EngineFlags,
    pool_tokens: FloatArray,
    behaviour: Behaviour,
    rates: FloatArray | None = None,
) -> Steady:
    """The steady state of launches.

    Args:
        coefficients: Logarithms in the order of `coefficients.NAMES`, shape (7,); (7, n) for a set of its own for each
            launch; (7, m, 1) for m sets for all.
        flags: Columns of shape (n,).
        pool_tokens: Tokens of the KV pool, shape (n,).
        behaviour: What else is known of requests.
        rates: Requests per second of an open loop, in place of the facts'; its shape ends in n.
    """
    facts = behaviour.facts
    seconds = _seconds(coefficients)
    work = _work(seconds[6], flags, pool_tokens, behaviour)
    if facts.rate_per_s is None:
        return _closed_loop(seconds, flags, work, facts)
    at: FloatArray = np.full(flags.seqs.shape, facts.rate_per_s) if rates is None else rates
    running = _running_at(at, seconds, flags, work, facts)
    pressed = _work(seconds[6], flags, pool_tokens, behaviour, pool_pressure(running, work.most_running))
    return _open_loop(at, seconds, flags, pressed, facts)


def saturated_rate(
    coefficients: FloatArray, flags: EngineFlags, pool_tokens: FloatArray, behaviour: Behaviour
) -> FloatArray:
    """Requests per second of an engine that is never short of them; arguments as for `steady_state`."""
    seconds = _seconds(coefficients)
    work = _work(seconds[6], flags, pool_tokens, behaviour, np.ones(flags.seqs.shape))
    return _rate(work.most_running, seconds, flags, work, behaviour.facts)[0]


def _seconds(coefficients: FloatArray) -> FloatArray:
    seconds: FloatArray = np.exp(np.clip(coefficients, -_MOST_LOG, _MOST_LOG))
    return seconds


def _closed_loop(seconds: FloatArray, flags: EngineFlags, work: _Work, facts: ServingFacts) -> Steady:
    """So many requests are under way at any time: those that do not run wait, or are outside the engine."""
    in_flight = work.most_running if facts.in_flight is None else np.full(flags.seqs.shape, float(facts.in_flight))
    running = np.minimum(work.most_running, in_flight)
    for _ in range(_ROUNDS):
        per_s = _rate(running, seconds, flags, work, facts)[0]
        running = np.maximum(np.minimum(work.most_running, in_flight - per_s * seconds[5]), 0.5)
    per_s, step_s, mixed_s, mixed = _rate(running, seconds, flags, work, facts)
    decode_s = step_s * np.maximum(work.steps - 1.0, 0.0)
    prefill_s = mixed_s * work.prefill_steps
    ttft_s = np.maximum(in_flight / per_s - decode_s, prefill_s + seconds[5])
    queue_s = np.maximum(ttft_s - prefill_s - seconds[5], 0.0)
    return _steady(per_s, running, (step_s, mixed_s, mixed), (decode_s, ttft_s, queue_s), work)


def _running_at(
    rate: FloatArray, seconds: FloatArray, flags: EngineFlags, work: _Work, facts: ServingFacts
) -> FloatArray:
    """Requests in the batch when they come at a rate, at most those that there is room for (Steffensen's iteration)."""

    def wanted(running: FloatArray) -> FloatArray:
        step_s = _rate(running, seconds, flags, work, facts)[1]
        return rate * step_s * (work.steps + work.prefill_steps)

    running: FloatArray = np.minimum(work.most_running, 1.0)
    for _ in range(_OPEN_ROUNDS):
        first = wanted(running)
        second = wanted(first)
        moved = first - running
        slope = (second - first) / np.where(np.abs(moved) > 1e-12, moved, 1.0)
        # A slope of 1 or more never settles: requests come faster than they end.
        settled = running + moved / np.maximum(1.0 - slope, 1e-9)
        running = np.clip(settled, _LEAST_RUNNING, work.most_running)
    return running


def _open_loop(rate: FloatArray, seconds: FloatArray, flags: EngineFlags, work: _Work, facts: ServingFacts) -> Steady:
    """Requests come at a rate; the wait is Sakasegawa's approximation for that many servers, Naval Res. Log. 1977."""
    capacity = _rate(work.most_running, seconds, flags, work, facts)[0]
    load = rate / capacity
    running = _running_at(rate, seconds, flags, work, facts)
    _, step_s, mixed_s, mixed = _rate(running, seconds, flags, work, facts)
    decode_s = step_s * np.maximum(work.steps - 1.0, 0.0)
    prefill_s = mixed_s * work.prefill_steps
    bound = np.minimum(load, _MOST_LOAD)
    power = np.sqrt(2.0 * (work.most_running + 1.0)) - 1.0
    queue_s = bound**power / (work.most_running * (1.0 - bound)) * (decode_s + prefill_s)
    queue_s = queue_s + np.maximum(load - 1.0, 0.0) * _HALF_WINDOW_S
    ttft_s = queue_s + prefill_s + seconds[5]
    return _steady(np.minimum(rate, capacity), running, (step_s, mixed_s, mixed), (decode_s, ttft_s, queue_s), work)


def _steady(
    per_s: FloatArray,
    running: FloatArray,
    step: tuple[FloatArray, FloatArray, FloatArray],
    times: tuple[FloatArray, FloatArray, FloatArray],
    work: _Work,
) -> Steady:
    step_s, mixed_s, mixed = step
    decode_s, ttft_s, queue_s = times
    return Steady(
        requests_per_s=per_s,
        running=running,
        step_s=step_s,
        mixed_step_s=mixed_s,
        mixed_share=mixed,
        decode_s=decode_s,
        ttft_s=ttft_s,
        queue_s=queue_s,
        decode_steps=work.steps,
        preemptions=work.preemptions,
        recompute_s=work.prefill_steps * mixed_s + decode_s / 2.0,
    )


def _rate(
    running: FloatArray, seconds: FloatArray, flags: EngineFlags, work: _Work, facts: ServingFacts
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Requests per second with so many running; mean step, step with prefill in it, and the share of such steps."""
    decoding = running * work.steps / (work.steps + work.prefill_steps)
    decoded = decoding * (1.0 + flags.guesses)
    by_steps = running / (work.steps + work.prefill_steps)
    by_budget = flags.batched_tokens / (work.computed + (1.0 + flags.guesses) * work.steps)
    per_step = _smooth_min(by_steps, by_budget)
    mixed = 1.0 - np.exp(-per_step * work.prefill_steps)
    prefilled = per_step * work.computed / np.maximum(mixed, 1e-9)
    fixed_s = seconds[1] * running + seconds[3] * flags.kv_scale / flags.ranks * decoding * work.context
    plain_s = fixed_s + _step_s(decoded, seconds, flags, facts)
    mixed_s = fixed_s + _step_s(np.minimum(decoded + prefilled, flags.batched_tokens), seconds, flags, facts)
    step_s = (1.0 - mixed) * plain_s + mixed * mixed_s
    return per_step / step_s, step_s, mixed_s, mixed


def _step_s(tokens: FloatArray, seconds: FloatArray, flags: EngineFlags, facts: ServingFacts) -> FloatArray:
    """Overhead and linear layers of a step. On a card these read and compute at once; attention comes beside them."""
    power = _OVERLAP_CPU if facts.device == "cpu" else _OVERLAP_GPU
    idle_tokens = 0.0 if facts.device == "cpu" else np.minimum(tokens, _FILLING_TOKENS)
    read_s = seconds[2] / flags.ranks * (1.0 + _DRAFT_SHARE * flags.guesses * flags.drafted)
    compute_s = seconds[4] / flags.ranks * (tokens + idle_tokens)
    slower = 1.0 if facts.device == "cpu" else np.where(tokens > flags.graph_tokens, _WITHOUT_GRAPHS, 1.0)
    taken: FloatArray = seconds[0] * slower + (read_s**power + compute_s**power) ** (1.0 / power)
    return taken


def _work(
    gained: FloatArray,
    flags: EngineFlags,
    pool_tokens: FloatArray,
    behaviour: Behaviour,
    pressure: FloatArray | None = None,
) -> _Work:
    """What requests ask for; an open loop preempts by the pressure on its pool, and without one told not at all."""
    facts = behaviour.facts
    known = known_hit_share(flags, facts)
    hits = known + (1.0 - known) * behaviour.hidden_hits * flags.caching
    computed = np.maximum(facts.prompt_tokens_mean * (1.0 - hits), 1.0)
    preemptions = behaviour.preemption * outgrown_share(flags, pool_tokens, facts)
    if facts.rate_per_s is not None:
        preemptions = preemptions * (0.0 if pressure is None else pressure)
    more = gained * accepted_guesses(behaviour.acceptance, flags.guesses)
    # The last step of an answer makes half of what it can, on average.
    steps = np.maximum((facts.output_tokens_mean + more / 2.0) / (1.0 + more), 1.0)
    # A preempted request is computed again up to where it was.
    computed = computed + preemptions * (computed + facts.output_tokens_mean / 2.0)
    fitting = np.maximum(np.minimum(flags.seqs, fitting_requests(flags, pool_tokens, facts)), 1.0)
    decoding = fitting if facts.in_flight is None else np.minimum(fitting, facts.in_flight)
    left = np.maximum(flags.batched_tokens - np.minimum(decoding, flags.batched_tokens / 2.0), 1.0)
    return _Work(
        computed=computed,
        steps=steps,
        prefill_steps=np.maximum(computed / left, 1.0),
        context=np.full(flags.seqs.shape, facts.prompt_tokens_mean + facts.output_tokens_mean / 2.0),
        most_running=fitting,
        preemptions=preemptions,
    )


def accepted_guesses(chance: FloatArray, guesses: FloatArray) -> FloatArray:
    """Tokens that one step gains: the first guess is accepted with this chance, each next one if all before it are."""
    below = np.minimum(chance, 1.0 - 1e-9)
    gained: FloatArray = below * (1.0 - below**guesses) / (1.0 - below)
    return gained


def _smooth_min(one: FloatArray, other: FloatArray) -> FloatArray:
    lower: FloatArray = (one**-_BUDGET_SHARPNESS + other**-_BUDGET_SHARPNESS) ** (-1.0 / _BUDGET_SHARPNESS)
    return lower
