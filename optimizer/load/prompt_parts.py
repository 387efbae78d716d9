"""Puts a prompt together: a shared beginning, the turns so far, and what is asked now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from optimizer.load.planned import ChatMessage, Prompt

Form: TypeAlias = Literal["token_ids", "text", "chat"]
"""How a prompt is sent."""
Part: TypeAlias = list[int] | str
"""A piece of it: token ids in a prompt of token ids, else text."""


def assemble(form: Form, prefix: Part | None, earlier: Sequence[tuple[Part, Part]], question: Prompt) -> Prompt:
    """The prompt as it is sent.

    Args:
        form: How.
        prefix: The shared beginning; in a chat it is the system message.
        earlier: Question and answer of each turn that is repeated.
        question: What is asked now; messages stand as they are.
    """
    before = [part for turn in earlier for part in turn]
    if form == "chat":
        return _conversation(prefix, before, question)
    parts = [*([] if prefix is None else [prefix]), *before, question]
    if form == "token_ids":
        ids: list[int] = []
        for part in parts:
            if isinstance(part, list):
                ids += part
        return ids
    return "".join(part for part in parts if isinstance(part, str))


def _conversation(prefix: Part | None, before: Sequence[Part], question: Prompt) -> tuple[ChatMessage, ...]:
    said = [ChatMessage("user" if place % 2 == 0 else "assistant", str(part)) for place, part in enumerate(before)]
    asked = list(question) if isinstance(question, tuple) else [ChatMessage("user", str(question))]
    messages = said + asked
    if prefix is None:
        return tuple(messages)
    if messages[0].role == "system":
        # Many chat templates take one system message, at the beginning.
        return (ChatMessage("system", f"{prefix}\n\n{messages[0].content}"), *messages[1:])
    return (ChatMessage("system", str(prefix)), *messages)


def text_bytes(prompt: Prompt) -> int:
    """UTF-8 bytes of a text or of all messages: a text has no more tokens than bytes. 0 for token ids."""
    if isinstance(prompt, str):
        return len(prompt.encode())
    return sum(len(part.content.encode()) for part in prompt if isinstance(part, ChatMessage))
