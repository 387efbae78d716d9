"""From the bytes of one answer to its trace: head, events, tokens and their times."""

from __future__ import annotations

from optimizer.load.client.chunks import ChunkScanner, parse_chunk
from optimizer.load.client.excerpt import excerpt
from optimizer.load.client.http_response import HttpResponse
from optimizer.load.client.sse import SseDecoder
from optimizer.load.client.trace import RequestTrace
from optimizer.load.failure import StreamBroken
from optimizer.load.planned import PlannedRequest

EVENT_STREAM = "text/event-stream"
REFUSAL_BYTES = 2048
"""So much of an answer that is no stream is read, for the message."""
SPARE_CHUNKS = 1000
"""Chunks beyond the tokens asked for (keep-alives, empty pieces) before a stream without usage is given up."""


class AnswerReader:
    """Writes into `trace` what the answer to `request` brings, as it comes.

    Attributes:
        response: How far the HTTP response is.
        ending: Whether only the rest of the response is missing, which the request does not need: the stream has said
            [DONE], or the answer is a refusal.
    """

    def __init__(self, request: PlannedRequest, trace: RequestTrace) -> None:
        self.response = HttpResponse()
        self.ending = False
        self._events = SseDecoder()
        self._scanner = ChunkScanner()
        self._tokens = _TokenCounter(trace)
        self._trace = trace
        self._exact = request.exact
        self._keeps_answer = request.session is not None
        self._texts: list[str] = []
        self._token_ids: list[int] | None = []
        self._refusal: bytes | None = None
        self._said_done = False

    def received(self, data: bytes, now_s: float) -> None:
        """Takes what came at `now_s`.

        Raises:
            StreamBroken: The answer cannot be used; the connection is of no more use either.
        """
        pieces = self.response.feed(data)
        if self._trace.http_status is None and self.response.status:
            self._look_at_head()
        if self._refusal is not None:
            self._refusal = b"".join([self._refusal, *pieces])[:REFUSAL_BYTES]
            if self.response.complete or len(self._refusal) == REFUSAL_BYTES:
                raise self._refused()
            return
        for piece in pieces:
            for event in self._events.feed(piece):
                if self._said_done:
                    break
                if event == b"[DONE]":
                    self._finish(now_s)
                else:
                    self._chunk(event, now_s)
        if self.response.complete and not self._said_done:
            raise self._truncated()

    def closed(self, error: Exception | None) -> None:
        """The connection ended.

        Raises:
            StreamBroken: Before the answer had.
        """
        self.response.closed()
        if self._said_done:
            return
        if self._refusal is not None:
            raise self._refused()
        if self.response.complete:
            raise self._truncated()
        how = "the connection was closed" if error is None else f"the connection broke ({_name(error)})"
        if self.response.status == 0:
            raise StreamBroken(f"{how} before an answer came")
        raise StreamBroken(f"{how} after {self._trace.output_tokens} tokens")

    def time_up(self) -> None:
        """The rest of the response does not come.

        Raises:
            StreamBroken: The answer was a refusal.
        """
        if self._refusal is not None:
            raise self._refused()

    def _look_at_head(self) -> None:
        headers = self.response.headers
        self._trace.http_status = self.response.status
        coding = headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            raise StreamBroken(f"HTTP {self.response.status} in a coding that was not asked for: {excerpt(coding)}")
        if self.response.status != 200 or self._content_type != EVENT_STREAM:
            self._refusal, self.ending = b"", True

    @property
    def _content_type(self) -> str:
        return self.response.headers.get("content-type", "").partition(";")[0].strip().lower()

    def _refused(self) -> StreamBroken:
        said = excerpt(self._refusal or b"")
        if self.response.status != 200:
            return StreamBroken(f"HTTP {self.response.status}: {said}".removesuffix(": "))
        kind = excerpt(self._content_type) or "untyped body"
        return StreamBroken(f"{kind} where an event stream was asked for: {said}")

    def _truncated(self) -> StreamBroken:
        return StreamBroken(f"the stream ended without [DONE] after {self._trace.output_tokens} tokens")

    def _chunk(self, data: bytes, now_s: float) -> None:
        tokens = None if self._keeps_answer else self._scanner.counted_tokens(data)
        if tokens is not None:
            self._tokens.counted(tokens, now_s)
            return
        chunk = parse_chunk(data)
        if chunk.prompt_tokens is not None:
            self._trace.prompt_tokens = chunk.prompt_tokens
        if self._keeps_answer and chunk.has_choices:
            self._texts.append(chunk.text)
            if self._token_ids is not None and chunk.says:
                self._token_ids = None if chunk.token_ids is None else self._token_ids + chunk.token_ids
        if not chunk.has_choices:
            self._tokens.total(chunk.tokens)
        elif chunk.tokens is None:
            self._tokens.uncounted(now_s, says=chunk.says)
        else:
            self._tokens.counted(chunk.tokens, now_s)

    def _finish(self, now_s: float) -> None:
        self._tokens.finish()
        self._trace.error = self._wrong_length()
        if self._keeps_answer and self._trace.error is None:
            self._trace.answer = self._token_ids or "".join(self._texts)
        self._trace.ended_s = now_s
        self._said_done = self.ending = True

    def _wrong_length(self) -> str | None:
        got, asked = self._trace.output_tokens, self._trace.asked_tokens
        if got == asked or (0 < got < asked and not self._exact):
            return None
        return f"{'short' if got < asked else 'long'} answer: {got} of {asked} tokens"


def _name(error: Exception) -> str:
    return excerpt(f"{type(error).__name__}: {error}").removesuffix(": ")


class _TokenCounter:
    """Turns chunks into arrivals of tokens.

    Tokens are counted by the usage that the engine reports, never by chunks, since speculative decoding and stream
    intervals put several tokens into one chunk. An engine that reports usage only at the end gets its total spread
    evenly over its chunks that say something, one token each if they agree; over all where none does, as without a
    tokenizer.
    """

    def __init__(self, trace: RequestTrace) -> None:
        self._trace = trace
        self._counted = 0
        self._last_chunk_s: float | None = None
        self._uncounted_s: list[float] = []
        self._silent_s: list[float] = []
        self._total: int | None = None

    def counted(self, tokens: int, now_s: float) -> None:
        """A piece of the answer came at `now_s`, by which it has `tokens` tokens."""
        self._last_chunk_s = now_s
        if self._counted < tokens <= self._trace.asked_tokens and not (self._uncounted_s or self._silent_s):
            self._trace.arrivals.append((now_s, tokens - self._counted))
            self._total = self._counted = tokens
        else:
            self.total(tokens)

    def uncounted(self, now_s: float, *, says: bool) -> None:
        """A piece of the answer came that does not tell how long the answer is by now, and may be empty."""
        self._last_chunk_s = now_s
        (self._uncounted_s if says else self._silent_s).append(now_s)
        chunks = len(self._uncounted_s) + len(self._silent_s)
        if chunks > self._trace.asked_tokens + SPARE_CHUNKS:
            raise StreamBroken(f"{chunks} chunks, and {self._trace.asked_tokens} tokens were asked for")

    def total(self, tokens: int | None) -> None:
        """The engine says how many tokens the answer has by now, if it says so."""
        if tokens is None:
            return
        self._total = tokens
        if tokens > self._trace.asked_tokens:
            raise StreamBroken(f"long answer: {tokens} of {self._trace.asked_tokens} tokens")

    def finish(self) -> None:
        """Books the tokens that only the last usage tells of."""
        if self._total is None:
            raise StreamBroken("the stream reports no usage, so its tokens cannot be counted")
        missing = self._total - self._counted
        times = self._uncounted_s or self._silent_s or ([] if self._last_chunk_s is None else [self._last_chunk_s])
        if missing > 0 and times:
            shares = [missing * (n + 1) // len(times) - missing * n // len(times) for n in range(len(times))]
            for at_s, share in zip(times, shares, strict=True):
                if share:
                    self._trace.arrivals.append((at_s, share))
