"""The first settings of a study: derived from traffic, model and card, as those advise who tune by hand.

Random first trials teach a model the shape of a space slowly, and most of them are bad; a handful of settings that
each follow one idea start it near what is good. What they set is found by its flag, so that they serve any space.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from optimizer.core.record import ParamValue
from optimizer.search_spaces import (
    GIB,
    BoolParameter,
    ChoiceParameter,
    FloatParameter,
    Parameter,
    SearchSpace,
    Side,
)
from optimizer.tuning.greybox.facts import ServingFacts
from optimizer.tuning.nearest_fit import grid, nearest
from optimizer.tuning.snapping import snapped
from optimizer.tuning.strategy import Params

_SEQS = "max-num-seqs"
_BATCHED = "max-num-batched-tokens"
_CONTEXT = "max-model-len"
_MEMORY = "gpu-memory-utilization"
_BLOCK = "block-size"
_CACHING = "enable-prefix-caching"
_SLICE = "long-prefill-token-threshold"
_GRAPHS = "max-cudagraph-capture-size"
_SPECULATION = "speculative-config"
_GUESSES = "speculative-config.num_speculative_tokens"

_CONTEXT_MARGIN = 1.5
"""Context cap over the P99 length of a request."""
_MOST_SHARE = 0.95
"""Of the device: above it engines may start and run out of memory under load."""
_HEADROOM_BYTES = 3.5 * GIB
"""Left of the device beside the engine's share: captured graphs and the peak of a step take some GiB of any card."""
_USUAL_SHARE = 0.9
"""Of which vLLM itself deems that it leaves enough."""
_SPARE_SHARE = 0.02
"""Left beside what others have on the device."""
_SAFE_SHARE = 0.88
_WIDE_BUDGET_PROMPTS = 4.0
_LEAST_WIDE_BUDGET = 2048
_MOST_WIDE_BUDGET = 16384
_LEAST_NARROW_BUDGET = 512
_MOST_NARROW_BUDGET = 2048
_FEW_GUESSES = 3
_MOST_GRAPH_TOKENS = 512
_MOST_ASKED = 100
"""Neighbours of one setting that are looked at; one that lies further away follows another idea."""

PoolTokens = Callable[[Params], float | None]
Accepts = Callable[[Params], bool]


@dataclass(frozen=True, slots=True)
class FirstSetting:
    """A setting and the idea behind it, in one line for the record."""

    params: Params
    reason: str


def first_settings(
    space: SearchSpace,
    facts: ServingFacts,
    baseline_params: Mapping[str, ParamValue],
    *,
    accepts: Accepts = lambda params: True,
    pool_tokens: PoolTokens = lambda params: None,
    other_bytes: float = 0.0,
) -> list[FirstSetting]:
    """Up to four settings, the most promising idea first; fewer where the space has little that they would set.

    All differ from each other, from the baseline and from the space's defaults, and all are legal and accepted.

    Args:
        space: What may be set.
        facts: Traffic, model and device.
        baseline_params: The user's own setting.
        accepts: Whether a setting keeps the rules and may start; one that does not gives way to its nearest neighbour.
        pool_tokens: Tokens that the KV pool of a setting holds; None where that is not known.
        other_bytes: Of the device's memory, in use by others.
    """
    plan = _Plan(space, facts, baseline_params, pool_tokens, other_bytes)
    taken: list[Params] = [dict(baseline_params), {}, space.existing(plan.usual)]
    found: list[FirstSetting] = []
    for draft, reason in plan.drafts():
        params = _legal(space, draft, accepts)
        if params is not None and not any(_same(params, other) for other in taken):
            taken.append(params)
            found.append(FirstSetting(params, reason))
    return found


def _legal(space: SearchSpace, full: Params, accepts: Accepts) -> Params | None:
    params = space.existing(full)
    if accepts(params):
        return params
    # An answer may take milliseconds, and there are thousands of neighbours.
    budget = itertools.count()
    return nearest(space, full, lambda neighbour: next(budget) < _MOST_ASKED and accepts(neighbour))


def _same(one: Mapping[str, ParamValue], other: Mapping[str, ParamValue]) -> bool:
    return one.keys() == other.keys() and all(
        one[name] == other[name] and isinstance(one[name], bool) == isinstance(other[name], bool) for name in one
    )


class _Plan:
    """Drafts settings: a value for every parameter, those included that do not exist beside the others."""

    def __init__(
        self,
        space: SearchSpace,
        facts: ServingFacts,
        baseline: Mapping[str, ParamValue],
        pool_tokens: PoolTokens,
        other_bytes: float,
    ) -> None:
        self._space = space
        self._facts = facts
        self._pool_tokens = pool_tokens
        self._other_share = other_bytes / facts.device_bytes if facts.device_bytes else 0.0
        self.usual: Params = {
            name: _usual(parameter, baseline.get(name)) for name, parameter in space.parameters.items()
        }

    def drafts(self) -> list[tuple[Params, str]]:
        """Every idea, whether or not it differs from the others in this space."""
        wide, latency, safe = self._wide(), self._latency(), self._safe()
        drafts = [
            (wide, f"throughput first: {self._words(wide)}"),
            (latency, f"latency first: small steps, so that prefill delays decoding little: {self._words(latency)}"),
            (safe, f"memory first: all running requests fit at their longest: {self._words(safe)}"),
        ]
        # Beside small steps: a draft model and the peak of a large step would crash where that peak alone just has.
        guessing = self._guessing(latency)
        if guessing is not None:
            drafts.insert(2, (guessing, f"guess tokens ahead, else as for latency: {self._words(guessing)}"))
        return drafts

    def _wide(self) -> Params:
        """As many requests at once as the pool holds, in large steps."""
        facts = self._facts
        draft = self._fitting_traffic()
        self._set_memory(draft, self._large_share())
        budget = _WIDE_BUDGET_PROMPTS * (facts.prompt_tokens_p99 - facts.shared_prefix_tokens)
        self._set(draft, _BATCHED, min(max(budget, _LEAST_WIDE_BUDGET), _MOST_WIDE_BUDGET), "up")
        return self._with_seqs(draft, self._held_tokens(draft, facts.output_tokens_mean / 2.0))

    def _latency(self) -> Params:
        """Steps that hold one usual prompt beside what is decoded; nobody waits for a place in them."""
        draft = self._fitting_traffic()
        self._set_memory(draft, self._large_share())
        budget = min(max(self._facts.prompt_tokens_p99, _LEAST_NARROW_BUDGET), _MOST_NARROW_BUDGET)
        self._set(draft, _BATCHED, budget, "near")
        self._set(draft, _SLICE, budget / 2.0, "near")
        return self._with_seqs(draft, self._held_tokens(draft, self._facts.output_tokens_mean / 2.0))

    def _safe(self) -> Params:
        draft = self._fitting_traffic()
        self._set_memory(draft, _SAFE_SHARE)
        self._set(draft, _BATCHED, _LEAST_WIDE_BUDGET, "near")
        prompt = self._facts.prompt_tokens_p99 - self._facts.prompt_tokens_mean
        return self._with_seqs(draft, self._held_tokens(draft, prompt + self._facts.output_tokens_p99))

    def _guessing(self, draft: Params) -> Params | None:
        """The draft with the first way to guess that the space has; None where it has none."""
        guessing = dict(draft)
        found = False
        for name, parameter in self._space.parameters.items():
            if isinstance(parameter, ChoiceParameter) and parameter.sets and not found:
                way = next((choice for choice in parameter.sets if _guesses(name, parameter, choice)), None)
                found = way is not None
                guessing[name] = guessing[name] if way is None else way
        self._set(guessing, _GUESSES, _FEW_GUESSES, "near")
        return self._with_room(guessing, 1 + _FEW_GUESSES) if found else None

    def _fitting_traffic(self) -> Params:
        """The usual values, with the context, the prefix cache and its blocks cut to the traffic."""
        facts = self._facts
        draft = dict(self.usual)
        longest = max(facts.request_tokens_p99 * _CONTEXT_MARGIN, float(facts.longest_request_tokens))
        self._set(draft, _CONTEXT, longest, "up")
        if facts.shared_prefix_tokens or facts.repeated_tokens_mean:
            for name, parameter in self._with_flag(_CACHING):
                draft[name] = True if isinstance(parameter, BoolParameter) else draft[name]
        if facts.shared_prefix_tokens:
            for name, parameter in self._with_flag(_BLOCK):
                draft[name] = _aligned(parameter, draft[name], facts.shared_prefix_tokens)
        return draft

    def _with_seqs(self, draft: Params, held_tokens: float) -> Params:
        """The draft with as many requests at once as there are or as the pool holds, and steps and graphs for them."""
        facts = self._facts
        wanted = None if facts.in_flight is None else float(facts.in_flight)
        pool = self._pool_tokens(self._space.existing(draft))
        if pool is not None and pool > 0.0:
            fitting = max(math.floor((pool - facts.shared_prefixes * self._shared(draft)) / held_tokens), 1)
            if wanted is None or fitting < wanted:
                self._set(draft, _SEQS, fitting, "down")
                return self._with_room(draft)
        if wanted is not None:
            self._set(draft, _SEQS, wanted, "up")
        return self._with_room(draft)

    def _with_room(self, draft: Params, tokens_each: int = 1) -> Params:
        """No fewer tokens in a step than requests, and a graph for a step of all of them."""
        seqs = self._number(draft, _SEQS)
        batched = self._number(draft, _BATCHED)
        if seqs is not None and batched is not None and batched < seqs:
            self._set(draft, _BATCHED, seqs, "up")
        if seqs is not None:
            step = min(seqs * tokens_each, _MOST_GRAPH_TOKENS)
            self._set(draft, _GRAPHS, min(step, self._number(draft, _BATCHED) or step), "up")
        return draft

    def _held_tokens(self, draft: Params, grown_tokens: float) -> float:
        """Tokens of the pool that a running request holds for itself: what is shared is there once."""
        return max(self._facts.prompt_tokens_mean - self._shared(draft), 1.0) + grown_tokens

    def _shared(self, draft: Params) -> float:
        """Tokens of the shared prefix; 0 where the draft does not keep it."""
        kept = all(draft[name] is True for name, _ in self._with_flag(_CACHING))
        return float(self._facts.shared_prefix_tokens) if kept else 0.0

    def _large_share(self) -> float:
        """Of the device, with head-room for what an engine takes beside its share."""
        device_bytes = self._facts.device_bytes
        if device_bytes is None:
            return _USUAL_SHARE
        return max(min(_MOST_SHARE, 1.0 - _HEADROOM_BYTES / device_bytes), _USUAL_SHARE)

    def _set_memory(self, draft: Params, share: float) -> None:
        share = min(share, 1.0 - self._other_share - _SPARE_SHARE)
        for name, parameter in self._with_flag(_MEMORY):
            if not isinstance(parameter, FloatParameter) or parameter.unit is None:
                self._put(draft, name, parameter, share, "down")
            elif self._facts.device_bytes is not None and share == _SAFE_SHARE:
                draft[name] = self.usual[name]
            elif self._facts.device_bytes is not None:
                self._put(draft, name, parameter, share * self._facts.device_bytes / GIB, "down")

    def _set(self, draft: Params, flag: str, wanted: float, side: Side) -> None:
        for name, parameter in self._with_flag(flag):
            self._put(draft, name, parameter, wanted, side)

    def _put(self, draft: Params, name: str, parameter: Parameter, wanted: float, side: Side) -> None:
        value = snapped(parameter, wanted, side)
        if value is not None:
            draft[name] = value

    def _number(self, draft: Params, flag: str) -> float | None:
        existing = self._space.active(draft)
        numbers = [draft[name] for name, _ in self._with_flag(flag) if name in existing]
        return next((float(n) for n in numbers if not isinstance(n, bool | str)), None)

    def _with_flag(self, flag: str) -> Sequence[tuple[str, Parameter]]:
        """The parameters that set this one flag, whatever they are called."""
        return [
            (name, parameter)
            for name, parameter in self._space.parameters.items()
            if parameter.flag_names(name) == (flag,) and not getattr(parameter, "sets", None)
        ]

    def _words(self, draft: Params) -> str:
        """The parameters that the ideas are about, with their values."""
        existing = self._space.active(draft)
        flags = (_SEQS, _BATCHED, _CONTEXT, _MEMORY, _BLOCK)
        named = [(name, parameter) for flag in flags for name, parameter in self._with_flag(flag) if name in existing]
        words = [
            f"{name} {draft[name]}" + (f" {unit}" if (unit := getattr(parameter, "unit", None)) else "")
            for name, parameter in named
        ]
        return ", ".join(words) or "the rest as usual"


def _usual(parameter: Parameter, baseline: ParamValue | None) -> ParamValue:
    """The parameter's default, else the user's value, else one from the middle of its range."""
    if parameter.default is not None:
        return parameter.default
    if baseline is not None:
        return baseline
    values = grid(parameter)
    return values[len(values) // 2]


def _aligned(parameter: Parameter, usual: ParamValue, shared_tokens: int) -> ParamValue:
    """The block size that finds most of a shared prefix again; the usual one of several that do, else the largest."""
    sizes = [size for size in grid(parameter) if isinstance(size, int) and not isinstance(size, bool) and size > 0]
    if not sizes:
        return usual
    most = max(shared_tokens // size * size for size in sizes)
    best = [size for size in sizes if shared_tokens // size * size == most]
    return usual if usual in best else max(best)


def _guesses(name: str, parameter: ChoiceParameter, choice: str) -> bool:
    flags = parameter.to_flags(name, choice, device_memory_bytes=None)
    return any(flag == _SPECULATION or flag.startswith(f"{_SPECULATION}.") for flag in flags)
