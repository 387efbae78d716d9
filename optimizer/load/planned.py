"""One request as it is planned: what to ask, and what its answer must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from optimizer.core.engine_config import JsonValue


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation: `role` is `system`, `user` or `assistant`."""

    role: str
    content: str


Prompt: TypeAlias = list[int] | str | tuple[ChatMessage, ...]
"""Token ids, a text, or a conversation for `/v1/chat/completions`."""

Answer: TypeAlias = list[int] | str
"""What the engine said: token ids where it tells them, else its text."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to send.

    Attributes:
        prompt: What is asked.
        output_tokens: Length of the answer to ask for.
        exact: Whether the answer must have exactly that many tokens; else it may end earlier by itself.
        prompt_tokens: Length of the prompt; None where only the server can tell.
        extra_body: Further fields of the request, such as `response_format`.
        session: Number of the conversation it belongs to; None for a request on its own.
        turn: Its place in that conversation, from 0.
        think_s: How long after its answer the next turn follows; None where no turn follows.
        refused: Why it is not sent but counts as failed, such as being longer than the engine takes; None if it is
            sent.
    """

    prompt: Prompt
    output_tokens: int
    exact: bool = True
    prompt_tokens: int | None = None
    extra_body: Mapping[str, JsonValue] = field(default_factory=dict)
    session: int | None = None
    turn: int = 0
    think_s: float | None = None
    refused: str | None = None
