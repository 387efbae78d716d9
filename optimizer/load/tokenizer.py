"""The model's tokenizer, read from its folder: counts tokens, and writes text of a wanted number of them."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optimizer.core.errors import HostError, InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FILE = "tokenizer.json"
_WORD = re.compile(r" [A-Za-z]{2,}")
_LETTER = re.compile(r"[A-Za-z]")
_ENOUGH_WORDS = 64
_MOST_WORDS = 4096
"""So many different words are enough for prompts that share nothing: 16 of them already tell 10^57 texts apart."""
_TRIES = 8
_PREFIX = "Cannot instantiate Tokenizer from buffer: "
_HINT = "fetch the file again, as it lies beside the model's weights"


class ModelTokenizer:
    """A model's tokenizer; `load_tokenizer` makes one.

    Args:
        folder: Where the model lies, for messages and for a copy in another process.
        tokenizer: What its `tokenizer.json` holds.
    """

    def __init__(self, folder: str, tokenizer: Tokenizer) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._words = _whole_words(tokenizer)
        if not self._words:
            raise InputError(
                f"{folder}/{_FILE}: no text of a wanted length can be written: it has no word or letter of one token",
                hint="take endpoint completions with token ids",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return load_tokenizer, (self._folder,)

    def count(self, text: str) -> int:
        """How many tokens a text has, without those that the model adds."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str) -> list[int]:
        """The token ids of a prompt, with those that the model adds, such as one for its beginning."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def write(self, tokens: int, rng: np.random.Generator) -> str:
        """Words without meaning that are `tokens` tokens together.

        Each word is one token by itself; where neighbours melt into one, words are added until the length is right.
        """
        words = self._draw(tokens, rng)
        for _ in range(_TRIES):
            missing = tokens - self.count("".join(words))
            if missing == 0:
                break
            words = words + self._draw(missing, rng) if missing > 0 else words[:missing]
        return "".join(words)

    def _draw(self, count: int, rng: np.random.Generator) -> list[str]:
        return [self._words[which] for which in rng.integers(len(self._words), size=count)]


def _whole_words(tokenizer: Tokenizer) -> list[str]:
    """Words of one token, a space before each, in the order of their ids; letters where the vocabulary has no words."""
    letters: list[str] = []
    words: list[str] = []
    for token_id in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token_id], skip_special_tokens=True)
        for spelled, pattern, found in ((text, _LETTER, letters), (f" {text.strip()}", _WORD, words)):
            if pattern.fullmatch(spelled) and tokenizer.encode(spelled, add_special_tokens=False).ids == [token_id]:
                found.append(spelled)
        if len(words) == _MOST_WORDS:
            break
    return words if len(words) >= _ENOUGH_WORDS else letters


@lru_cache(maxsize=4)
def load_tokenizer(model: str) -> ModelTokenizer:
    """The tokenizer of a model's folder.

    Args:
        model: The folder.

    Raises:
        InputError: It has no `tokenizer.json`, or one that cannot be read.
        HostError: The library that reads it is not installed.
    """
    file = Path(model) / _FILE
    if not file.is_file():
        where = "a hub id, whose files are not at hand" if not Path(model).is_dir() else f"without {_FILE}"
        raise InputError(
            f"tokenizer missing: the workload sends text, and the model {model} is {where}",
            hint="give --model a folder with a tokenizer.json, or send token ids: endpoint completions, no `content`",
        )
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise HostError(
            "tokenizer missing: the workload sends text, and the package tokenizers is not installed",
            hint="pip install vllm-autotune[tokenizer], or send token ids: endpoint completions, no `content`",
        ) from None
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: this tokenizer cannot be read: {error.strerror}") from None
    return ModelTokenizer(model, _parse(Tokenizer, content, file))


def _parse(tokenizer_class: type[Tokenizer], content: bytes, file: Path) -> Tokenizer:
    """Reads what the file holds. `from_buffer` raises ValueError where `from_str` raises a bare Exception."""
    if not content.strip():
        raise InputError(f"{file}: this tokenizer cannot be read: the file is empty", hint=_HINT)
    try:
        return tokenizer_class.from_buffer(content)
    except ValueError as error:
        reason = str(error).removeprefix(_PREFIX)
        raise InputError(f"{file}: this tokenizer cannot be read: {reason}", hint=_HINT) from None
