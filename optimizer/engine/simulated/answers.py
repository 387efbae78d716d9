"""The JSON that answers a completion or chat request, whole or in chunks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from optimizer.engine.simulated.generation_request import GenerationRequest
from optimizer.engine.simulated.step import StepOutput


@dataclass(slots=True)
class Answer:
    """Builds every body of one answer.

    Attributes:
        with_text: False without a tokenizer: all text is empty, as vLLM's is.
        token_ids: What was generated so far.
        finish_reason: Of the last token.
        cached_tokens: Prompt tokens that the prefix cache held.
    """

    request_id: str
    request: GenerationRequest
    with_text: bool
    created: int = field(default_factory=lambda: int(time.time()))
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    cached_tokens: int = 0

    @property
    def usage(self) -> dict[str, object]:
        """Token counts so far."""
        prompt_tokens, completion_tokens = len(self.request.prompt), len(self.token_ids)
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def take(self, output: StepOutput) -> list[int]:
        """Adds what a step gave, and returns its tokens."""
        self.token_ids += output.token_ids
        self.cached_tokens = output.cached_tokens
        return output.token_ids

    def opening_chunk(self) -> dict[str, object] | None:
        """What a chat stream says before its first token; None for completions."""
        if self.request.endpoint == "completion":
            return None
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return self._chunk([choice], with_usage=self.request.continuous_usage)

    def token_chunk(self, new: list[int], *, finished: bool) -> dict[str, object]:
        """The chunk of the tokens that came last."""
        text: dict[str, object] = {"text": self._text(new)}
        if self.request.endpoint == "chat":
            text = {"delta": {"content": self._text(new)}}
        choice = self._choice(text, new, finished=finished)
        return self._chunk([choice], with_usage=self.request.continuous_usage)

    def usage_chunk(self) -> dict[str, object]:
        """The last chunk under `include_usage`: no choices."""
        return self._chunk([], with_usage=True)

    def whole(self) -> dict[str, object]:
        """The answer to a request that does not stream."""
        everything = self._text(self.token_ids)
        text: dict[str, object] = {"text": everything}
        if self.request.endpoint == "chat":
            text = {"message": {"role": "assistant", "content": everything}}
        choice = self._choice(text, self.token_ids, finished=True)
        return self._envelope("chat.completion") | {"choices": [choice], "usage": self.usage}

    def _choice(self, text: dict[str, object], token_ids: list[int], *, finished: bool) -> dict[str, object]:
        choice = {"index": 0, **text, "logprobs": None, "finish_reason": self.finish_reason if finished else None}
        return choice | ({"token_ids": token_ids} if self.request.return_token_ids else {})

    def _chunk(self, choices: list[dict[str, object]], *, with_usage: bool) -> dict[str, object]:
        body = self._envelope("chat.completion.chunk") | {"choices": choices}
        return body | ({"usage": self.usage} if with_usage else {})

    def _envelope(self, chat_object: str) -> dict[str, object]:
        kind = chat_object if self.request.endpoint == "chat" else "text_completion"
        return {"id": self.request_id, "object": kind, "created": self.created, "model": self.request.model}

    def _text(self, token_ids: list[int]) -> str:
        """One lower-case letter a token: there is no vocabulary to look up."""
        return "".join(chr(ord("a") + token % 26) for token in token_ids) if self.with_text else ""
