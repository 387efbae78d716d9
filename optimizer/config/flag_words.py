"""Goes through vLLM's own words of a command: which flag each one is, and which words are its value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from optimizer.config.flag_tables import SAME_FLAGS, FlagTables
from optimizer.core.engine_config import canonical_flag

_NUMBER = re.compile(r"-\.?\d")
_SHORT = re.compile(r"-([A-Za-z]+)(\..+)?")
_SHORT_WITH_NUMBER = re.compile(r"-([A-Za-z]+)(\d+)")
_TRUTHS: Final = {"true", "false", "1", "0", "yes", "no"}


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with the words of a command, and what to do."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class GivenFlag:
    """One flag as it stands on a command line.

    Attributes:
        word: As written, up to its value: `--max_num_seqs`, `-tp`.
        spelling: Canonical name it is written under, without dashes; `no-x` stays `no-x`.
        flag: Canonical flag that is set, perhaps dotted; another spelling and what `no-x` turns off are told by their
            one name.
        switch: What a flag without a value is switched to; None for a flag with a value.
        values: The words of its value.
        trouble: Why it cannot be read.
    """

    word: str
    spelling: str
    flag: str
    switch: bool | None
    values: tuple[str, ...] = ()
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True)
class FlagWords:
    """All of vLLM's words.

    Attributes:
        given: The flags, in order.
        model: The word that is the model, or None.
        strays: Words that belong to nothing.
    """

    given: tuple[GivenFlag, ...]
    model: str | None
    strays: tuple[str, ...]


def read_flag_words(words: tuple[str, ...], *, takes_model: bool, tables: FlagTables) -> FlagWords:
    """Takes the words apart. Nothing is refused here: what is wrong is told with the flag that it is wrong with.

    Args:
        words: What vLLM itself gets.
        takes_model: Whether a word that is no flag may be the model.
        tables: How many words each flag takes.
    """
    reader = _Reader(list(words), takes_model, tables)
    reader.read_all()
    return FlagWords(tuple(reader.given), reader.model, tuple(reader.strays))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NUMBER.match(word)


@dataclass(slots=True)
class _Reader:
    """Goes from left to right."""

    words: list[str]
    takes_model: bool
    tables: FlagTables
    model: str | None = None
    given: list[GivenFlag] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)

    def read_all(self) -> None:
        while self.words:
            word = self.words.pop(0)
            if _is_flag(word):
                self.given.append(self._flag(word))
            elif self.takes_model and self.model is None:
                self.model = word
            else:
                self.strays.append(word)

    def _flag(self, word: str) -> GivenFlag:
        name, has_value, value = word.partition("=")
        spelling, attached = self._name(name)
        if spelling is None:
            return GivenFlag(name, name, name, None, self._following(), self._no_flag(word))
        base = SAME_FLAGS.get(spelling, spelling)
        if attached is not None:
            return GivenFlag(name, spelling, base, None, (attached,))
        off = self.tables.turned_off(base)
        if off is not None or base in self.tables.switches:
            return self._switch(name, spelling, off or base, off is None, value if has_value else None)
        if has_value:
            return GivenFlag(name, spelling, base, None, (value,))
        return self._with_words(name, spelling, base)

    def _with_words(self, word: str, spelling: str, flag: str) -> GivenFlag:
        one = "." in flag or flag in self.tables.values
        values: tuple[str, ...]
        if one or flag in self.tables.optional:
            values = (self.words.pop(0),) if self.words and not _is_flag(self.words[0]) else ()
        else:
            values = self._following()
        if values or not (one or flag in self.tables.lists):
            return GivenFlag(word, spelling, flag, None if values else True, values)
        form = f"{word} VALUE [VALUE …]" if flag in self.tables.lists else f"{word} VALUE"
        return GivenFlag(word, spelling, flag, None, (), Trouble(f"{word!r} has no value", f"write {form}"))

    def _switch(self, word: str, spelling: str, flag: str, on: bool, value: str | None) -> GivenFlag:
        if value is None and self.words and self.words[0].lower() in _TRUTHS:
            value = self.words.pop(0)
        trouble = None
        if value is not None:
            trouble = Trouble(f"{word!r} takes no value, but {value!r} is given", f"write --{flag} or --no-{flag}")
        return GivenFlag(word, spelling, flag, on, (), trouble)

    def _following(self) -> tuple[str, ...]:
        values: list[str] = []
        while self.words and not _is_flag(self.words[0]):
            values.append(self.words.pop(0))
        return tuple(values)

    def _name(self, name: str) -> tuple[str | None, str | None]:
        """The canonical flag, and the value when it is attached to a short form, as in -O2 or -tp4."""
        if name.startswith("--"):
            return canonical_flag(name), None
        short = _SHORT.fullmatch(name)
        if short is not None and short[1] in self.tables.shorts:
            return self.tables.shorts[short[1]] + (short[2] or ""), None
        numbered = _SHORT_WITH_NUMBER.fullmatch(name)
        if numbered is not None and numbered[1] in self.tables.shorts:
            return self.tables.shorts[numbered[1]], numbered[2]
        return None, None

    def _no_flag(self, word: str) -> Trouble:
        known = ", ".join(f"-{short}" for short in self.tables.shorts)
        return Trouble(f"{word!r} is no flag of vLLM", f"long flags begin with two dashes; known short ones: {known}")
