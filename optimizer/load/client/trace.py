"""What is known of one request while it runs and after."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from optimizer.core.measurement import UNFINISHED
from optimizer.load.planned import PlannedRequest

__all__ = ["UNFINISHED", "Arrivals", "RequestTrace"]


class Arrivals:
    """Time and number of tokens of each chunk that brought any: a sequence of pairs that takes 12 bytes a chunk.

    A long run has millions of them. As tuples they would take a hundred bytes each, and the garbage collector would
    stop the client to walk over them.

    Attributes:
        times_s: When each chunk came, on the monotonic clock.
        tokens: How many tokens each brought.
    """

    __slots__ = ("times_s", "tokens")

    def __init__(self) -> None:
        self.times_s = array("d")
        self.tokens = array("i")

    def append(self, arrival: tuple[float, int]) -> None:
        """Adds a chunk, the latest so far."""
        at_s, tokens = arrival
        self.times_s.append(at_s)
        self.tokens.append(tokens)

    def __len__(self) -> int:
        return len(self.times_s)

    def __getitem__(self, which: int) -> tuple[float, int]:
        return self.times_s[which], self.tokens[which]

    def __iter__(self) -> Iterator[tuple[float, int]]:
        return zip(self.times_s, self.tokens, strict=True)


@dataclass(slots=True)
class RequestTrace:
    """What is known of one request so far. It stays valid when the request is cancelled half-way.

    Attributes:
        scheduled_s: When it should have left.
        prompt_tokens: Tokens of its prompt, as planned until the engine's usage tells better; 0 while nobody knows.
        asked_tokens: Tokens that the answer must have, or may have at most.
        sent_s: When it left, or None. Before the connection is made, if a new one is needed.
        ended_s: When it ended, well or badly, or None while it runs.
        arrivals: Time and number of tokens of each chunk that brought any.
        error: Why it failed; None once it has succeeded.
        http_status: Status of the answer, or None before it came.
        answer: Of a request in a conversation that succeeded: its token ids if the engine told them, else its text.
        number: Its number, of the conversation with sessions; window and ramp have numbers of their own.
        session: Number of the conversation it belongs to, or None; -2 - number for one that began in the ramp.
        turn: Its place in that conversation, from 0.
        ready_s: When it could leave: it was due and had a slot. None while it waits for one, or where none is needed.
    """

    scheduled_s: float
    prompt_tokens: int
    asked_tokens: int
    sent_s: float | None = None
    ended_s: float | None = None
    arrivals: Arrivals = field(default_factory=Arrivals)
    error: str | None = UNFINISHED
    http_status: int | None = None
    answer: list[int] | str | None = None
    number: int = 0
    session: int | None = None
    turn: int = 0
    ready_s: float | None = None

    @classmethod
    def of(cls, request: PlannedRequest, scheduled_s: float, number: int = 0) -> RequestTrace:
        """The trace of a planned request, before it leaves."""
        prompt_tokens = request.prompt_tokens
        if prompt_tokens is None:
            prompt_tokens = len(request.prompt) if isinstance(request.prompt, list) else 0
        trace = cls(scheduled_s, prompt_tokens, request.output_tokens)
        trace.number, trace.session, trace.turn = number, request.session, request.turn
        return trace

    @property
    def refused(self) -> bool:
        """Whether it ended without ever being sent, since the engine would not take it."""
        return self.ended_s is not None and self.sent_s is None

    @property
    def output_tokens(self) -> int:
        """Tokens it got."""
        return sum(self.arrivals.tokens)

    @property
    def gaps_s(self) -> list[float]:
        """The time before each token but the first, one element a token.

        Tokens of one chunk arrived together: the first of them takes the gap since the chunk before, the others 0.
        Nothing is smeared over time.
        """
        gaps: list[float] = []
        before: float | None = None
        for at, tokens in self.arrivals:
            gaps.extend([] if before is None else [at - before])
            gaps.extend([0.0] * (tokens - 1))
            before = at
        return gaps
