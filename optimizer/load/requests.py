"""Which requests are sent, made from two seeds.

Lengths and the choice of the shared prefix come from the study's seed and the request's number alone, so that every
configuration of a study faces the same requests (common random numbers). The tokens come from a seed of each run, so
that no run finds another's prompts in its prefix cache.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from optimizer.load.workload import Workload

TOKEN_IDS = 256
"""Prompts use the ids below this: they are plain bytes in a byte-level tokenizer, and exist in every vocabulary."""


class _Stream(enum.IntEnum):
    """Independent random streams below one seed; the values are part of the record and never change."""

    WINDOW = 0
    RAMP = 1
    WARM_UP = 2
    PREFIX = 3


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to send.

    Attributes:
        prompt: Token ids, the shared prefix first.
        output_tokens: Length of the answer to ask for.
    """

    prompt: list[int]
    output_tokens: int


class RequestPlan:
    """The requests of one run, by number; making one has no effect on another.

    Args:
        workload: The shapes to draw from.
        study_seed: >= 0; the same for all runs that are compared.
        content_seed: >= 0; another one for each run on an engine that may keep a cache.
        vocab_size: Token ids stay below it (and below 256).
    """

    def __init__(self, workload: Workload, study_seed: int, content_seed: int, vocab_size: int) -> None:
        self._workload = workload
        self._study_seed = study_seed
        self._content_seed = content_seed
        self._token_ids = min(vocab_size, TOKEN_IDS)
        self._prefixes: list[list[int]] = []
        if workload.shared_prefix is not None:
            length = workload.shared_prefix.tokens
            self._prefixes = [
                self._tokens(_Stream.PREFIX, number, length) for number in range(workload.shared_prefix.prefixes)
            ]

    @property
    def shared_prefixes(self) -> int:
        """How many shared prefixes there are; 0 without sharing."""
        return len(self._prefixes)

    def request(self, number: int) -> PlannedRequest:
        """Request `number` (from 0) of the measuring window and what follows it."""
        return self._make(_Stream.WINDOW, number)

    def ramp_request(self, number: int) -> PlannedRequest:
        """Request `number` of the ramp, whose length differs from run to run, so it has numbers of its own."""
        return self._make(_Stream.RAMP, number)

    def warm_up_request(self, number: int) -> PlannedRequest:
        """Warm-up request `number`: the window's prefixes, each once before any is drawn again, and other tails."""
        return self._make(_Stream.WARM_UP, number, prefix=number if number < len(self._prefixes) else None)

    def _make(self, stream: _Stream, number: int, prefix: int | None = None) -> PlannedRequest:
        rng = _generator(self._study_seed, stream, number)
        prompt_tokens = self._workload.prompt_tokens.draw(rng)
        output_tokens = self._workload.output_tokens.draw(rng)
        tail = self._tokens(stream, number, prompt_tokens)
        if not self._prefixes:
            return PlannedRequest(tail, output_tokens)
        chosen = int(rng.integers(len(self._prefixes))) if prefix is None else prefix
        return PlannedRequest(self._prefixes[chosen] + tail, output_tokens)

    def _tokens(self, stream: _Stream, number: int, count: int) -> list[int]:
        ids: list[int] = _generator(self._content_seed, stream, number).integers(self._token_ids, size=count).tolist()
        return ids


def _generator(seed: int, stream: _Stream, number: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(stream), number)))
