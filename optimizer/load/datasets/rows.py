"""One row of a file: its fields, and what must be right with them. Every finding is a ValueError in words."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from optimizer.load.lengths import LONGEST_TOKENS
from optimizer.load.planned import ChatMessage, Prompt
from optimizer.load.sources import Columns

_ROLES = ("system", "user", "assistant")
_ASKS = ("human", "user")
_ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard")
_BYTES_PER_TOKEN = 4
"""A rule of thumb for English text and vocabularies of 30,000 tokens and more."""


def guessed_tokens(text: str) -> int:
    """About how many tokens a text has, without a tokenizer: its UTF-8 bytes by four, and at least 1."""
    return max(1, math.ceil(len(text.encode()) / _BYTES_PER_TOKEN))


@dataclass(frozen=True, slots=True)
class RowNeeds:
    """What a workload asks of each row.

    Attributes:
        output_tokens: The row must say how long its answer is.
        chat: The row goes to the chat API, and must not be token ids.
        turns: At most so many questions of a conversation are asked.
    """

    output_tokens: bool
    chat: bool
    turns: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """What one row asks.

    Attributes:
        prompt: The prompt; None when only its length is known. Of a conversation, its first question.
        prompt_tokens: Its length as the file tells it or as the token ids are; None for text of unknown length.
        output_tokens: Length of the answer; None when the row does not tell.
        timestamp_s: When it came, in seconds; None when the row does not tell.
        questions: All questions of a conversation.
        answers: What was answered to each of them, if the conversation goes so far.
    """

    prompt: Prompt | None
    prompt_tokens: int | None
    output_tokens: int | None
    timestamp_s: float | None = None
    questions: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()

    def question(self, turn: int) -> Prompt | None:
        """What is asked in a turn (from 0) of a conversation; of any other row its prompt."""
        return self.questions[turn] if self.questions else self.prompt

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the prompt; none where it is token ids or only a length."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        return tuple(message.content for message in self.prompt) if isinstance(self.prompt, tuple) else ()


def prompt_row(data: object, needs: RowNeeds) -> Row:
    """A row of custom JSON lines.

    Raises:
        ValueError: A field is missing or wrong.
    """
    fields = _object(data)
    prompt = _prompt(fields, needs)
    if prompt is None:
        raise ValueError(f"prompt is missing{_near('prompt', fields)}")
    row = Row(prompt, _prompt_tokens(fields, "prompt_tokens", prompt), _output_tokens(fields, "output_tokens", needs))
    return row


def trace_row(data: object, needs: RowNeeds, columns: Columns) -> Row:
    """A row of recorded traffic.

    Raises:
        ValueError: A field is missing or wrong.
    """
    fields = _object(data)
    prompt = _prompt(fields, needs)
    if prompt is None and columns.prompt_tokens not in fields:
        raise ValueError(f"{columns.prompt_tokens} is missing{_near(columns.prompt_tokens, fields)}")
    return Row(
        prompt,
        _prompt_tokens(fields, columns.prompt_tokens, prompt),
        _output_tokens(fields, columns.output_tokens, needs),
        _timestamp_s(fields, columns.timestamp),
    )


def conversation_row(data: object, needs: RowNeeds) -> Row | None:
    """A conversation; None when it does not begin with a question and its answer.

    Raises:
        ValueError: A field is missing or wrong.
    """
    fields = _object(data)
    if "conversations" not in fields:
        raise ValueError(f"conversations is missing{_near('conversations', fields)}")
    said = [_utterance(entry, number) for number, entry in enumerate(_list(fields["conversations"], "conversations"))]
    said = [(who, text) for who, text in said if who != "system" and text.strip()]
    questions: list[str] = []
    answers: list[str] = []
    for (asks, question), (replies, answer) in zip(said[::2], said[1::2], strict=False):
        if asks not in _ASKS or replies not in _ANSWERS or len(questions) == needs.turns:
            break
        questions.append(question)
        answers.append(answer)
    if not questions:
        return None
    return Row(questions[0], None, None, questions=tuple(questions), answers=tuple(answers))


def _utterance(entry: object, number: int) -> tuple[str, str]:
    where = f"conversations.{number}"
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: {entry!r:.60} is no object")
    return _text(entry.get("from"), f"{where}.from"), _text(entry.get("value"), f"{where}.value")


def _object(data: object) -> Mapping[str, object]:
    if not isinstance(data, dict):
        raise ValueError(f"{data!r:.60} is no JSON object")
    return data


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: {value!r:.60} is no list")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: {value!r:.60} is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where}: half of a surrogate pair, which is no text") from None
    return value


def _near(wanted: str, fields: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(wanted, [str(name) for name in fields], n=1, cutoff=0.6)
    return f"; did you mean it by {near[0]}?" if near else ""


def _prompt(fields: Mapping[str, object], needs: RowNeeds) -> Prompt | None:
    if "prompt" not in fields:
        return None
    prompt = fields["prompt"]
    if isinstance(prompt, str):
        if not prompt:
            raise ValueError("prompt: it is empty")
        return _text(prompt, "prompt")
    entries = prompt if isinstance(prompt, list) else []
    if entries and all(type(token) is int and token >= 0 for token in entries):
        if needs.chat:
            raise ValueError("prompt: token ids cannot be sent to chat; take endpoint completions")
        return entries
    if entries and all(isinstance(message, dict) for message in entries):
        if not needs.chat:
            raise ValueError("prompt: messages need endpoint chat")
        return tuple(_message(message, number) for number, message in enumerate(entries))
    raise ValueError(f"prompt: {prompt!r:.60} is neither text nor token ids nor messages")


def _message(message: Mapping[str, object], number: int) -> ChatMessage:
    role = message.get("role")
    if role not in _ROLES:
        raise ValueError(f"prompt.{number}.role: {role!r:.60} is not one of {', '.join(_ROLES)}")
    return ChatMessage(str(role), _text(message.get("content"), f"prompt.{number}.content"))


def _prompt_tokens(fields: Mapping[str, object], name: str, prompt: Prompt | None) -> int | None:
    """Token ids tell their length themselves."""
    told = _length(fields[name], name) if name in fields else None
    if not isinstance(prompt, list):
        return told
    if told is not None and told != len(prompt):
        raise ValueError(f"{name}: {told}, and the prompt has {len(prompt)} token ids")
    return len(prompt)


def _output_tokens(fields: Mapping[str, object], name: str, needs: RowNeeds) -> int | None:
    if name in fields:
        return _length(fields[name], name)
    if needs.output_tokens:
        raise ValueError(f"{name} is missing{_near(name, fields)}; the row or the workload must give it")
    return None


def _length(value: object, name: str) -> int:
    number = value
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        number = int(value) if len(value) < len(str(LONGEST_TOKENS)) + 8 else LONGEST_TOKENS + 1
    if type(number) is not int or not 1 <= number <= LONGEST_TOKENS:
        raise ValueError(f"{name}: {value!r:.60} is no number of tokens from 1 to {LONGEST_TOKENS}")
    return number


def _timestamp_s(fields: Mapping[str, object], name: str) -> float:
    if name not in fields:
        raise ValueError(f"{name} is missing{_near(name, fields)}")
    value = fields[name]
    seconds = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else _read_time(value)
    if seconds is None or not math.isfinite(seconds):
        raise ValueError(f"{name}: {value!r:.60} is neither seconds nor a date with time")
    return seconds


def _read_time(value: object) -> float | None:
    """Seconds of a number in text, or of a date with time, which is UTC unless it says otherwise."""
    if not isinstance(value, str):
        return None
    try:
        return float(value)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
