"""Which requests are sent, made from two seeds.

Lengths, the choice of the shared prefix and the order of a file's rows come from the study's seed and the request's
number alone, so that every configuration of a study faces the same requests (common random numbers). The tokens come
from a seed of each run, so that no run finds another's prompts in its prefix cache. What a file says is the same in
every run: such requests carry the run's seed as `cache_salt`, which keeps vLLM from sharing their blocks with other
runs, and lets requests of one run that begin alike share theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optimizer.core.engine_config import JsonValue
from optimizer.core.errors import InputError
from optimizer.load.arrival_process import TraceArrivals
from optimizer.load.datasets import Row
from optimizer.load.datasets.index import FloatArray
from optimizer.load.planned import Answer, PlannedRequest, Prompt
from optimizer.load.prompt_parts import Form, assemble, text_bytes
from optimizer.load.row_order import RowOrder
from optimizer.load.seeds import Stream, generator
from optimizer.load.tokenizer import ModelTokenizer
from optimizer.load.turns import Origin, Turn, TurnMaker
from optimizer.load.workload import Workload


@dataclass(frozen=True, slots=True)
class TooLong:
    """Requests of the window that are longer than the engine takes.

    Attributes:
        requests: How many have been planned so far.
        longest_tokens: Prompt and answer of the longest of them, in tokens; 0 when there is none.
    """

    requests: int
    longest_tokens: int


class RequestPlan:
    """The requests of one run, by number; making one has no effect on another. It can be sent to another process.

    Args:
        workload: The shapes to draw from.
        study_seed: >= 0; the same for all runs that are compared.
        content_seed: >= 0; another one for each run on an engine that may keep a cache.
        vocab_size: Token ids stay below it (synthetic ones below 256 as well).
        max_model_len: Longest prompt and answer, in tokens, that the engine takes; None when it is not known. A
            request beyond it is planned as `refused`: it is not sent, counts as failed, and is seen in `too_long`.
        tokenizer: The model's; needed where `workload.needs_tokenizer`.

    Raises:
        InputError: The tokenizer is missing, or the workload's file is wrong or does not fit the vocabulary.
    """

    def __init__(
        self,
        workload: Workload,
        study_seed: int,
        content_seed: int,
        vocab_size: int,
        *,
        max_model_len: int | None = None,
        tokenizer: ModelTokenizer | None = None,
    ) -> None:
        self._workload = workload
        self._study_seed = study_seed
        self._content_seed = content_seed
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._tokenizer = tokenizer
        self._extra = {} if workload.structured_output is None else workload.structured_output.extra_body()
        self._too_long: dict[tuple[int, int], int] = {}
        self._index = workload.dataset
        recorded = isinstance(workload.arrivals, TraceArrivals)
        self._rows = None if self._index is None else RowOrder(self._index, study_seed, recorded=recorded)
        self._turns = TurnMaker(workload, content_seed, vocab_size, tokenizer)
        self._check_vocabulary()

    def __reduce__(self) -> tuple[Any, ...]:
        seeds = (self._study_seed, self._content_seed, self._vocab_size)
        return _rebuilt, (self._workload, *seeds, self._max_model_len, self._tokenizer)

    @property
    def study_seed(self) -> int:
        """What lengths, order and arrivals come from."""
        return self._study_seed

    @property
    def shared_prefixes(self) -> int:
        """How many shared prefixes there are; 0 without sharing."""
        return 0 if self._workload.shared_prefix is None else self._workload.shared_prefix.prefixes

    @property
    def too_long(self) -> TooLong:
        """What was longer than `max_model_len` among the window's requests made so far."""
        return TooLong(len(self._too_long), max(self._too_long.values(), default=0))

    @property
    def recorded_offsets_s(self) -> FloatArray | None:
        """When each row of a trace came, in seconds after the first; None unless the source is a trace.

        Request `number` of a run with arrivals of kind trace is row `number`, modulo the number of rows.
        """
        if self._index is None or self._index.timestamps_s is None:
            return None
        offsets_s: FloatArray = self._index.timestamps_s - self._index.timestamps_s[0]
        return offsets_s

    def request(self, number: int, history: Sequence[Answer] = ()) -> PlannedRequest:
        """Request `number` (from 0) of the measuring window and what follows it.

        Args:
            number: Of the request; with sessions, of the conversation.
            history: With sessions, the engine's answers to the turns before, from the first on: so many turns are
                over. Token ids answer prompts of token ids; where the engine tells only text, ids of the same number
                stand in, which no cache holds.
        """
        return self._make(self._origin(Stream.WINDOW, number), history)

    def ramp_request(self, number: int, history: Sequence[Answer] = ()) -> PlannedRequest:
        """Request `number` of the ramp, whose length differs from run to run, so it has numbers of its own."""
        return self._make(self._origin(Stream.RAMP, number), history)

    def warm_up_request(self, number: int) -> PlannedRequest:
        """Warm-up request `number`: the window's prefixes, each once before any is drawn again, and other tails."""
        prefix = number if number < self.shared_prefixes else None
        return self._make(self._origin(Stream.WARM_UP, number), prefix=prefix)

    def _check_vocabulary(self) -> None:
        if self._index is not None and self._index.highest_token_id >= self._vocab_size:
            raise InputError(
                f"{self._index.source.path}: token id {self._index.highest_token_id} is beyond the {self._vocab_size} "
                "ids that the model is known to have",
                hint="take the model that the ids were made for, as a folder with its config.json",
            )

    def _origin(self, stream: Stream, number: int) -> Origin:
        synthetic: Form = "token_ids"
        if self._workload.writes_text:
            synthetic = "chat" if self._workload.endpoint == "chat" else "text"
        if self._index is None or self._rows is None:
            return Origin(stream, number, None, synthetic)
        chosen = self._rows.choose(stream, number)
        row = self._index.row(chosen.number)
        return Origin(stream, number, row, self._form(row, synthetic), chosen.apart)

    def _form(self, row: Row, synthetic: Form) -> Form:
        if row.prompt is None:
            return synthetic
        if isinstance(row.prompt, list):
            return "token_ids"
        if self._workload.endpoint == "chat":
            return "chat"
        return "token_ids" if self._workload.content == "token_ids" else "text"

    def _make(self, origin: Origin, history: Sequence[Answer] = (), prefix: int | None = None) -> PlannedRequest:
        rng = generator(self._study_seed, origin.stream, origin.number)
        turns = [self._turns.turn(rng, origin, 0)]
        shared = self._turns.shared_prefix(rng, origin.form, prefix)
        for turn in range(1, len(history) + 1):
            later = generator(self._study_seed, origin.stream, origin.number, turn)
            turns.append(self._turns.turn(later, origin, turn))
        sessions = self._workload.sessions
        kept = 0 if sessions is None else sessions.kept(len(history))
        repeated = range(len(history) - kept, len(history))
        answers = {turn: self._turns.answer(origin, turn, history[turn], turns[turn]) for turn in repeated}
        earlier = [(turns[turn].part, answers[turn]) for turn in repeated]
        prompt = assemble(origin.form, shared, earlier, turns[-1].question)
        planned = self._planned_tokens([turns[turn] for turn in repeated], turns[-1])
        output_tokens = turns[-1].output_tokens
        in_session = sessions is not None and origin.stream is not Stream.WARM_UP
        return PlannedRequest(
            prompt,
            output_tokens,
            exact=self._workload.structured_output is None,
            prompt_tokens=len(prompt) if isinstance(prompt, list) else None,
            extra_body=self._extra_body(origin),
            session=origin.number if in_session else None,
            turn=len(history),
            think_s=self._think_s(origin, len(history)) if in_session else None,
            refused=self._refused(origin, len(history), prompt, planned, output_tokens),
        )

    def _think_s(self, origin: Origin, turn: int) -> float | None:
        sessions = self._workload.sessions
        if sessions is None:
            return None
        rng = generator(self._study_seed, Stream.SESSION, origin.stream, origin.number)
        turns = sessions.turns.draw(rng)
        if origin.row is not None:
            turns = min(turns, len(origin.row.questions))
        if turn + 1 >= turns:
            return None
        return sessions.think_time.draw_s(
            generator(self._study_seed, Stream.SESSION, origin.stream, origin.number, turn + 1)
        )

    def _extra_body(self, origin: Origin) -> dict[str, JsonValue]:
        if origin.row is None or origin.row.prompt is None:
            return self._extra
        return {**self._extra, "cache_salt": f"{self._content_seed:x}{origin.apart}"}

    def _planned_tokens(self, repeated: Sequence[Turn], now: Turn) -> int | None:
        """Tokens of the prompt less what a chat template adds; None where a text's length is not known."""
        sharing = self._workload.shared_prefix
        total = 0 if sharing is None else sharing.tokens
        for turn in (*repeated, now):
            if turn.tokens is None:
                return None
            total += turn.tokens + (0 if turn is now else turn.output_tokens)
        return total

    def _refused(
        self, origin: Origin, turn: int, prompt: Prompt, planned: int | None, output_tokens: int
    ) -> str | None:
        if self._max_model_len is None:
            return None
        tokens = self._prompt_tokens(prompt, planned, self._max_model_len - output_tokens)
        if tokens is None or tokens + output_tokens <= self._max_model_len:
            return None
        if origin.stream is Stream.WINDOW:
            self._too_long[origin.number, turn] = tokens + output_tokens
        return f"longer than max-model-len: {tokens} + {output_tokens} of {self._max_model_len} tokens"

    def _prompt_tokens(self, prompt: Prompt, planned: int | None, room: int) -> int | None:
        """Length of the prompt; None where it is not known, or where its bytes say that it fits."""
        if isinstance(prompt, list):
            return len(prompt)
        if planned is not None or self._tokenizer is None or text_bytes(prompt) < room:
            return planned
        texts = [prompt] if isinstance(prompt, str) else [message.content for message in prompt]
        return sum(self._tokenizer.count(text) for text in texts)


def _rebuilt(
    workload: Workload,
    study_seed: int,
    content_seed: int,
    vocab_size: int,
    max_model_len: int | None,
    tokenizer: ModelTokenizer | None,
) -> RequestPlan:
    return RequestPlan(workload, study_seed, content_seed, vocab_size, max_model_len=max_model_len, tokenizer=tokenizer)
