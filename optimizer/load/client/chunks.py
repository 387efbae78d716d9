"""What one chunk of a streamed completion says.

Nearly every chunk is asked one thing, its `usage.completion_tokens`, so chunks of the shape in which engines write them
are not parsed: two patterns, bound to the beginning and the end of the object, find the number. They match only where a
JSON parser would find the same; every other chunk goes to one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from optimizer.load.client.excerpt import excerpt
from optimizer.load.failure import StreamBroken

MAX_TOKENS = 10**9
"""More than any answer has; a count beyond it is a fault of the server."""

_SCALAR = rb'(?:"[^"\\]*"|[0-9]+|null|true|false)'
_HEAD = re.compile(rb'\{(?:"[a-z_]+": ?' + _SCALAR + rb', ?)*"choices": ?\[ ?\{')
"""From the first byte: plain fields, then `choices` with something in it."""
_TAIL = re.compile(
    rb'"usage": ?\{(?:"[a-z_]+": ?(?:[0-9]+|null), ?)*"completion_tokens": ?([0-9]{1,9})'
    rb'(?:, ?"[a-z_]+": ?(?:[0-9]+|null))*\}(?:, ?"[a-z_]+": ?' + _SCALAR + rb")*\}"
)
"""To the last byte: `usage` with plain fields only, then plain fields of the chunk itself."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk.

    Attributes:
        tokens: Completion tokens so far; None where the chunk does not tell.
        has_choices: Whether it carries a piece of the answer.
        prompt_tokens: Tokens of the prompt, where the chunk tells.
        text: The piece of the answer, "" when there is none.
        token_ids: Its token ids, where the engine was asked for them and told.
        says: Whether there is anything in that piece: not so the chunk that opens a chat with a role, or one that only
            tells why the answer ended.
    """

    tokens: int | None
    has_choices: bool
    prompt_tokens: int | None = None
    text: str = ""
    token_ids: list[int] | None = None
    says: bool = False


class ChunkScanner:
    """Finds the count in chunks of one answer without parsing them.

    A count that it finds is what `parse_chunk` would say, of a chunk with choices and no error. Inside a string every
    quotation mark has a backslash before it, so neither pattern can begin or end in one unnoticed.
    """

    def __init__(self) -> None:
        self._head: bytes | None = None

    def counted_tokens(self, data: bytes) -> int | None:
        """Completion tokens so far, of a chunk in the usual shape that carries a piece of the answer; else None."""
        if self._head is None or not data.startswith(self._head):
            # Up to its choices, every chunk of an answer is the same.
            head = _HEAD.match(data)
            if head is None:
                return None
            self._head = head[0]
        at = data.rfind(b'"usage":')
        if at < 0 or data.find(b'"error"') >= 0:
            return None
        tail = _TAIL.fullmatch(data, at)
        return None if tail is None or not (data.isascii() or _is_utf8(data)) else int(tail[1])


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def parse_chunk(data: bytes) -> Chunk:
    """Reads a chunk of `/v1/completions` or `/v1/chat/completions`.

    Raises:
        StreamBroken: It is no completion chunk, or the engine reports an error in it.
    """
    try:
        chunk = json.loads(data.decode())
    except UnicodeDecodeError:
        raise StreamBroken(f"a chunk that is not UTF-8: {excerpt(data)}") from None
    except (ValueError, RecursionError):
        raise StreamBroken(f"a chunk that is not JSON: {excerpt(data)}") from None
    if not isinstance(chunk, dict):
        raise StreamBroken(f"a chunk that is no object: {excerpt(data)}")
    if chunk.get("error"):
        error = chunk["error"]
        said = error.get("message", error) if isinstance(error, dict) else error
        raise StreamBroken(f"error in the stream: {excerpt(str(said))}")
    usage = chunk.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    tokens, prompt_tokens = _count(usage, "completion_tokens"), _count(usage, "prompt_tokens")
    if choice is None:
        return Chunk(tokens, bool(choices), prompt_tokens)
    return Chunk(tokens, True, prompt_tokens, *_said(choice))


def _count(usage: dict[str, object], key: str) -> int | None:
    tokens = usage.get(key)
    if not isinstance(tokens, int):
        return None
    if not 0 <= tokens <= MAX_TOKENS:
        raise StreamBroken(f"a usage that cannot be: {key} {excerpt(str(tokens))}")
    return tokens


def _said(choice: dict[str, object]) -> tuple[str, list[int] | None, bool]:
    """Text and token ids of a piece of an answer, and whether there is anything in it."""
    ids = choice.get("token_ids")
    token_ids = ids if isinstance(ids, list) and all(isinstance(token, int) for token in ids) else None
    delta = choice.get("delta")
    if isinstance(delta, dict):
        text, says = delta.get("content"), any(value for key, value in delta.items() if key != "role")
    else:
        text = choice.get("text")
        says = bool(text)
    return text if isinstance(text, str) else "", token_ids, says or bool(token_ids)
