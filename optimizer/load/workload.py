"""What traffic is sent: how requests arrive, how long they are, what they share, and how long one looks.

A `Workload` is a boundary model: it is read from YAML files and kept in the record of a study. It holds no seed; the
study's seed makes it concrete (see `load.requests`). Requests are synthetic, of drawn lengths, or come from a file.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from optimizer.load.arrival_process import ArrivalProcess, ClosedLoop, TraceArrivals, Window
from optimizer.load.datasets import DatasetIndex, RowNeeds, index_of
from optimizer.load.lengths import LengthDistribution
from optimizer.load.sessions import Sessions
from optimizer.load.sources import JsonlSource, ShareGptSource, Source, TraceSource
from optimizer.load.structured import StructuredOutput

__all__ = ["ArrivalProcess", "ClosedLoop", "PrefixSharing", "WarmUp", "Window", "Workload"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PrefixSharing(_Model):
    """Beginnings that many requests have in common, such as system prompts."""

    prefixes: int = Field(ge=1, le=10_000, description="How many different beginnings there are; all equally common.")
    tokens: int = Field(ge=1, le=10_000_000, description="Length of each beginning, in tokens.")
    aligned_to: int | None = Field(
        None, ge=1, description="Refuse a length that is no multiple of this, such as the KV block size of 16."
    )

    @property
    def words(self) -> str:
        """The sharing in a few words, for listings."""
        return f"{self.prefixes} shared {'prefix' if self.prefixes == 1 else 'prefixes'} of {self.tokens} tokens"

    @model_validator(mode="after")
    def _is_aligned(self) -> Self:
        if self.aligned_to is not None and self.tokens % self.aligned_to:
            below = self.tokens - self.tokens % self.aligned_to
            near = " or ".join(str(length) for length in (below, below + self.aligned_to) if length)
            raise ValueError(f"tokens is {self.tokens}, no multiple of aligned_to, {self.aligned_to}: take {near}")
        return self


class WarmUp(_Model):
    """What is sent before anything is measured."""

    requests: int = Field(ge=1, description="Warm-up requests; raised to one per shared prefix where there are more.")
    max_s: float = Field(
        gt=0, allow_inf_nan=False, description="Longest time for the warm-up requests, and again for the ramp, in s."
    )


_LATER_KEYS = ("description", "source", "content", "sessions", "structured_output")
"""Left out of the record where they are not set: a study that began before there were any keeps its identity."""


class Workload(_Model):
    """The traffic of a study. Each request is a shared prefix (if any), then tokens of its own, then its answer."""

    name: str = Field(min_length=1, description="How people call it.")
    description: str = Field("", description="What it stands for, and where its lengths come from.")
    endpoint: Literal["completions", "chat"] = Field("completions", description="Which API of the engine is loaded.")
    arrivals: ArrivalProcess = Field(description="How requests arrive.")
    source: Source | None = Field(None, description="A file of requests; null draws the lengths of synthetic ones.")
    prompt_tokens: LengthDistribution | None = Field(
        None, description="Tokens of a synthetic prompt after the shared prefix; of each turn, with sessions."
    )
    output_tokens: LengthDistribution | None = Field(
        None, description="Tokens of each answer, exactly; with a source they stand in place of the file's."
    )
    shared_prefix: PrefixSharing | None = Field(None, description="Beginnings that requests share, or null.")
    content: Literal["token_ids", "text"] | None = Field(
        None,
        description="How prompts are sent. By default as the file has them; synthetic ones as token ids, or as text "
        "for chat. Synthetic text needs the model's tokenizer, as token ids of a file's text do.",
    )
    sessions: Sessions | None = Field(None, description="Conversations of several turns; null makes single requests.")
    structured_output: StructuredOutput | None = Field(
        None, description="A JSON schema for the answers, which then end by themselves; output_tokens is their limit."
    )
    warmup: WarmUp = Field(description="What is sent before the window.")
    window: Window = Field(description="How long one measures.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for wrong, words in self._contradictions():
            if wrong:
                raise ValueError(words)
        return self

    def _contradictions(self) -> list[tuple[bool, str]]:
        source, recorded = self.source, isinstance(self.source, TraceSource)
        kind = "" if source is None else source.kind
        return [
            (source is None and self.prompt_tokens is None, "prompt_tokens: is missing, and there is no source"),
            (source is None and self.output_tokens is None, "output_tokens: is missing, and there is no source"),
            (
                source is not None and self.prompt_tokens is not None,
                "prompt_tokens: the source gives the prompts; leave one of the two out",
            ),
            (
                isinstance(self.arrivals, TraceArrivals) and not recorded,
                "arrivals.kind: trace needs a source of kind trace, which has the times",
            ),
            (
                self.sessions is not None and isinstance(source, JsonlSource | TraceSource),
                f"sessions: a source of kind {kind} has single requests; sharegpt has conversations",
            ),
            (
                self.endpoint == "chat" and self.content == "token_ids",
                "content: chat sends messages of text; take endpoint completions for token ids",
            ),
        ]

    @model_serializer(mode="wrap")
    def _without_what_is_not_set(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        for key in _LATER_KEYS:
            if key in data and not data[key]:
                del data[key]
        for part, key in (("window", "max_requests"), ("shared_prefix", "aligned_to")):
            if isinstance(data.get(part), dict) and data[part].get(key) is None:
                data[part].pop(key, None)
        return data

    @property
    def dataset(self) -> DatasetIndex | None:
        """What the source's file holds, read and checked once; None without a source.

        Raises:
            InputError: The file cannot be read or is wrong; file and line are named.
        """
        if self.source is None:
            return None
        return index_of(
            self.source,
            RowNeeds(
                output_tokens=self.output_tokens is None,
                chat=self.endpoint == "chat",
                turns=1 if self.sessions is None else self.sessions.turns.longest_tokens,
            ),
        )

    @property
    def needs_tokenizer(self) -> bool:
        """Whether requests can be made only with the model's tokenizer.

        Raises:
            InputError: As `dataset`.
        """
        index = self.dataset
        if index is None:
            return self.writes_text
        counts_answers = isinstance(self.source, ShareGptSource) and self.output_tokens is None
        writes_prefix = self.shared_prefix is not None and (index.has_text or self.writes_text)
        encodes = index.has_text and self.content == "token_ids"
        return counts_answers or writes_prefix or encodes or (index.has_bare_lengths and self.writes_text)

    @property
    def writes_text(self) -> bool:
        """Whether what is synthetic is text and not token ids."""
        return self.endpoint == "chat" or self.content == "text"

    @property
    def request_words(self) -> str:
        """What is sent after the shared prefix, in a few words, for listings.

        Raises:
            InputError: As `dataset`.
        """
        prompts = f"{'' if self.prompt_tokens is None else self.prompt_tokens.words} prompt"
        answers = "" if self.output_tokens is None else f"{self.output_tokens.words} output tokens"
        words = f"{prompts} and {answers}"
        if self.source is not None:
            words = f"the requests of {PurePath(self.source.path).name}" + (f" and {answers}" if answers else "")
        return words if self.sessions is None else f"{words}, in sessions of {self.sessions.turns.words} turns"

    @property
    def longest_prompt_tokens(self) -> int:
        """The longest prompt that can be sent, shared prefix and repeated turns included.

        Text from a file counts as a token for every four bytes, which is usual for English and a guess for anything
        else: a longer request is found when it is planned or refused by the engine, and counted.

        Raises:
            InputError: As `dataset`.
        """
        shared = 0 if self.shared_prefix is None else self.shared_prefix.tokens
        earlier = 0 if self.sessions is None else self.sessions.kept(self.sessions.turns.longest_tokens - 1)
        index = self.dataset
        if index is not None and self.sessions is not None:
            asked = None if self.output_tokens is None else self.output_tokens.longest_tokens
            return shared + index.longest_conversation_tokens(asked)
        if index is not None:
            return shared + int(index.prompt_tokens.max())
        question = 0 if self.prompt_tokens is None else self.prompt_tokens.longest_tokens
        return shared + question + earlier * (question + self.longest_answer_tokens)

    @property
    def longest_request_tokens(self) -> int:
        """Longest prompt plus longest answer: the engine's context cap must not be smaller.

        Raises:
            InputError: As `dataset`.
        """
        index = self.dataset
        if index is not None and self.sessions is None and self.output_tokens is None:
            shared = 0 if self.shared_prefix is None else self.shared_prefix.tokens
            return shared + int((index.prompt_tokens + index.output_tokens).max())
        return self.longest_prompt_tokens + self.longest_answer_tokens

    @property
    def longest_answer_tokens(self) -> int:
        """The longest answer that is asked for.

        Raises:
            InputError: As `dataset`.
        """
        index = self.dataset
        if self.output_tokens is not None:
            return self.output_tokens.longest_tokens
        return 0 if index is None else int(index.output_tokens.max())

    def identity(self) -> dict[str, JsonValue]:
        """What makes two workloads the same, as plain JSON: of a file its content and not its place; no description.

        Raises:
            InputError: As `dataset`.
        """
        data: dict[str, JsonValue] = self.model_dump(mode="json", exclude={"description"})
        index, source = self.dataset, data.get("source")
        if index is not None and isinstance(source, dict):
            del source["path"]
            source["sha256"] = index.sha256
        return data
