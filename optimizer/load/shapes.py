"""Lengths of the requests that a workload and a seed stand for, without writing any of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.load.arrival_process import TraceArrivals
from optimizer.load.datasets import DatasetIndex
from optimizer.load.datasets.index import IntArray
from optimizer.load.lengths import LengthDistribution
from optimizer.load.row_order import RowOrder
from optimizer.load.seeds import Stream, generator
from optimizer.load.workload import Workload

USUAL_COUNT = 2000
"""The P99 of so many lengths lies between the true P98.3 and P99.7 (binomial, 3 sigma)."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestShapes:
    """Lengths in tokens, an element a request; of conversations an element a turn.

    Attributes:
        own_tokens: Of the prompt without the shared prefix and without repeated turns.
        prompt_tokens: Of the whole prompt.
        output_tokens: Of the answer.
        seen_tokens: Leading tokens of the prompt that the engine has computed before: the shared prefix, or the turn
            before with its answer less the answer's last token, which passes through the model only when it is sent.
    """

    own_tokens: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    seen_tokens: IntArray


def request_shapes(workload: Workload, study_seed: int = 0, count: int = USUAL_COUNT) -> RequestShapes:
    """The first requests (or conversations) of the window.

    Text of a file has guessed lengths; see `datasets.guessed_tokens`.

    Args:
        workload: Which ones.
        study_seed: >= 0.
        count: Requests; with sessions, conversations.

    Raises:
        InputError: The workload's file is wrong.
    """
    shapes = [shape for turns in _drawn(workload, study_seed, count) for shape in turns]
    own, prompt, output, seen = np.array(shapes, dtype=np.int64).T
    return RequestShapes(own, prompt, output, seen)


_Shape = tuple[int, int, int, int]


def _drawn(workload: Workload, seed: int, count: int) -> Iterator[list[_Shape]]:
    index = workload.dataset
    recorded = isinstance(workload.arrivals, TraceArrivals)
    order = None if index is None else RowOrder(index, seed, recorded=recorded)
    for number in range(count):
        row = None if order is None else order.choose(Stream.WINDOW, number).number
        turns = _turns(workload, seed, number)
        if row is not None and index is not None:
            turns = min(turns, int(index.turns[row]))
        lengths = [
            _lengths(workload, generator(seed, Stream.WINDOW, number, *([turn] if turn else [])), index, row)
            for turn in range(turns)
        ]
        yield _grown(workload, lengths)


def _turns(workload: Workload, seed: int, number: int) -> int:
    if workload.sessions is None:
        return 1
    return workload.sessions.turns.draw(generator(seed, Stream.SESSION, Stream.WINDOW, number))


def _lengths(
    workload: Workload, rng: np.random.Generator, index: DatasetIndex | None, row: int | None
) -> tuple[int, int]:
    """Question and answer of one turn; the questions of a conversation from a file count as equally long."""
    if index is None or row is None:
        return _draw(workload.prompt_tokens, rng), _draw(workload.output_tokens, rng)
    question = int(index.prompt_tokens[row])
    if index.questions_tokens[row]:
        question = max(1, round(int(index.questions_tokens[row]) / int(index.turns[row])))
    if workload.output_tokens is not None:
        return question, workload.output_tokens.draw(rng)
    return question, int(index.output_tokens[row])


def _draw(lengths: LengthDistribution | None, rng: np.random.Generator) -> int:
    return 0 if lengths is None else lengths.draw(rng)


def _grown(workload: Workload, lengths: list[tuple[int, int]]) -> list[_Shape]:
    """The shapes of one conversation, each turn with what it repeats."""
    shared = 0 if workload.shared_prefix is None else workload.shared_prefix.tokens
    shapes: list[_Shape] = []
    for turn, (question, output) in enumerate(lengths):
        kept = 0 if workload.sessions is None else workload.sessions.kept(turn)
        repeated = sum(q + a for q, a in lengths[turn - kept : turn])
        # Once turns are dropped from the front, nothing after the shared prefix stands where it stood before.
        goes_on = turn > 0 and kept == turn
        seen = shared + repeated - 1 if goes_on else shared
        shapes.append((question, shared + repeated + question, output, seen))
    return shapes
