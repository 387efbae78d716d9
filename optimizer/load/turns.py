"""Single turns and shared beginnings: their lengths from the study's seed, their content from the run's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.core.errors import InputError
from optimizer.load.datasets import Row
from optimizer.load.planned import Answer, Prompt
from optimizer.load.prompt_parts import Form, Part
from optimizer.load.seeds import Stream, generator
from optimizer.load.tokenizer import ModelTokenizer
from optimizer.load.workload import Workload

TOKEN_IDS = 256
"""Prompts use the ids below this: they are plain bytes in a byte-level tokenizer, and exist in every vocabulary."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One question as drawn.

    Attributes:
        question: Its text, token ids or messages.
        tokens: Its length, without what a model or a chat template adds; None for text of unknown length.
        output_tokens: Length of its answer.
    """

    question: Prompt
    tokens: int | None
    output_tokens: int

    @property
    def part(self) -> Part:
        """The question as a part of a later prompt."""
        if isinstance(self.question, tuple):
            raise ValueError("a prompt of messages is one request, and no turn of a session")
        return self.question


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request comes from.

    Attributes:
        stream: Window, ramp or warm-up.
        number: Its number therein.
        row: Its row of the workload's file, if there is one.
        form: How it is sent.
        apart: What sets its prefix cache apart within the run; may be empty.
    """

    stream: Stream
    number: int
    row: Row | None
    form: Form
    apart: str = ""


class TurnMaker:
    """Makes turns; the order of the draws is part of the record.

    Args:
        workload: The shapes to draw from.
        content_seed: >= 0; of everything that is written.
        vocab_size: Synthetic token ids stay below it, and below 256.
        tokenizer: The model's; needed where `workload.needs_tokenizer`.

    Raises:
        InputError: The tokenizer is missing.
    """

    def __init__(
        self, workload: Workload, content_seed: int, vocab_size: int, tokenizer: ModelTokenizer | None
    ) -> None:
        self._workload = workload
        self._content_seed = content_seed
        self._token_ids = min(vocab_size, TOKEN_IDS)
        self._given_tokenizer = tokenizer
        self._prefixes: dict[tuple[int, bool], Part] = {}
        if workload.needs_tokenizer and tokenizer is None:
            raise self._missing()

    def turn(self, rng: np.random.Generator, origin: Origin, turn: int) -> Turn:
        """Turn `turn` (from 0) of a request, its lengths drawn from `rng`."""
        lengths, row = self._workload.prompt_tokens, origin.row
        tokens = lengths.draw(rng) if lengths is not None else None if row is None else row.prompt_tokens
        output_tokens = self._output_tokens(rng, row, turn)
        question = None if row is None else row.question(turn)
        if question is None:
            if tokens is None:
                raise ValueError("neither the workload nor its file says how long the prompt is")
            content = generator(self._content_seed, origin.stream, origin.number, *([turn] if turn else []))
            return Turn(self._write(content, origin.form, tokens), tokens, output_tokens)
        if origin.form == "token_ids" and isinstance(question, str):
            ids = self._tokenizer.encode(question)
            return Turn(ids, len(ids), output_tokens)
        return Turn(question, tokens, output_tokens)

    def shared_prefix(self, rng: np.random.Generator, form: Form, number: int | None) -> Part | None:
        """A shared beginning: `number`, or one drawn from `rng`; None without sharing."""
        sharing = self._workload.shared_prefix
        if sharing is None:
            return None
        chosen = int(rng.integers(sharing.prefixes)) if number is None else number
        key = (chosen, form == "token_ids")
        if key not in self._prefixes:
            content = generator(self._content_seed, Stream.PREFIX, chosen)
            self._prefixes[key] = self._write(content, form, sharing.tokens)
        return self._prefixes[key]

    def answer(self, origin: Origin, turn: int, answer: Answer, asked: Turn) -> Part:
        """The engine's answer as a part of a later prompt; ids stand in for text among token ids."""
        if origin.form != "token_ids" or isinstance(answer, list):
            return answer
        content = generator(self._content_seed, Stream.STAND_IN, origin.stream, origin.number, turn)
        return self._write(content, origin.form, asked.output_tokens)

    def _output_tokens(self, rng: np.random.Generator, row: Row | None, turn: int) -> int:
        if self._workload.output_tokens is not None:
            return self._workload.output_tokens.draw(rng)
        if row is not None and row.output_tokens is not None:
            return row.output_tokens
        return max(1, self._tokenizer.count("" if row is None else row.answers[turn]))

    def _write(self, rng: np.random.Generator, form: Form, tokens: int) -> Part:
        if form != "token_ids":
            return self._tokenizer.write(tokens, rng)
        ids: list[int] = rng.integers(self._token_ids, size=tokens).tolist()
        return ids

    @property
    def _tokenizer(self) -> ModelTokenizer:
        if self._given_tokenizer is None:
            raise self._missing()
        return self._given_tokenizer

    def _missing(self) -> InputError:
        return InputError(
            f"tokenizer missing: workload {self._workload.name} needs the model's",
            hint="give --model a folder with a tokenizer.json, or a workload of token ids",
        )
