"""Rewrites a command of older days, or of a text that invents flags, into one that today's vLLM takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from optimizer.config.flag_tables import STATIC_TABLES, FlagTables, tables_of
from optimizer.config.flag_values import typed_value
from optimizer.config.flag_words import FlagWords, GivenFlag, read_flag_words
from optimizer.config.old_forms import instead_of, settings_of
from optimizer.config.serve_words import ServeWords, serve_words
from optimizer.core.engine_config import FlagValue, JsonValue
from optimizer.core.errors import InputError
from optimizer.engine.vllm.argv import flag_words
from optimizer.engine.vllm.catalogue import FlagCatalogue
from optimizer.engine.vllm.old_flags import OLD_FLAGS, OLD_SWITCHES, OLD_VARIABLES, OldFlag
from optimizer.search_spaces import set_flag

Outcome: TypeAlias = Literal["replaced", "needless", "gone", "related", "unknown"]
"""What became of a flag; `unknown` is known neither to vLLM nor to the table of old flags."""
_ORIGIN = "command"


@dataclass(frozen=True, slots=True)
class Translated:
    """One flag or variable that is not of today.

    Attributes:
        given: As it was written, with its value.
        outcome: What became of it.
        today: Today's flags in place of it, or what to do.
        why: What became of it, in a sentence.
    """

    given: str
    outcome: Outcome
    today: str
    why: str


@dataclass(frozen=True, slots=True)
class Translation:
    """A command of today.

    Attributes:
        env: Variables in front of it.
        words: The command; flags alone when flags alone were given.
        changes: What was changed, in the order of the old command.
        kept: How many flags stand as they were.
    """

    env: Mapping[str, str]
    words: tuple[str, ...]
    changes: tuple[Translated, ...]
    kept: int


def translate_command(text: str, catalogue: FlagCatalogue | None) -> Translation:
    """Rewrites a command.

    Args:
        text: As it is pasted: a whole command, or flags alone.
        catalogue: Flags of the vLLM that it is for; None takes what releases 0.26 to 0.33 know between them.

    Raises:
        InputError: It is no command that serves.
    """
    command = serve_words(text, origin=_ORIGIN)
    tables = (STATIC_TABLES if catalogue is None else tables_of(catalogue)).with_switches(OLD_SWITCHES)
    words = read_flag_words(command.words, takes_model=command.takes_model, tables=tables)
    if words.strays:
        raise InputError(
            f"{_ORIGIN}: the word {words.strays[0]!r} belongs to no flag", hint="put quotes around a value"
        )
    return _Translator(command, words, catalogue, tables).translation()


@dataclass(slots=True)
class _Translator:
    """Goes through a command once: first its variables, then its flags."""

    command: ServeWords
    words: FlagWords
    catalogue: FlagCatalogue | None
    tables: FlagTables
    changes: list[Translated] = field(default_factory=list)
    settings: dict[str, FlagValue] = field(default_factory=dict)
    """Today's settings for what is old, JSON objects merged."""

    def translation(self) -> Translation:
        env = dict(self._environment())
        current = [given for given in self.words.given if not self._is_replaced(given)]
        merged = [given for given in current if self._is_part_of_settings(given)]
        for given in merged:
            self._merge(given)
        kept = [given for given in current if given not in merged and not self._is_model(given)]
        words = [word for given in kept for word in (given.word, *given.values)]
        return Translation(env, (*self._head(), *words, *flag_words(self.settings)), tuple(self.changes), len(current))

    def _head(self) -> tuple[str, ...]:
        if self.command.bare:
            return ()
        named = [given.values[0] for given in self.words.given if self._is_model(given)]
        model = self.words.model or next(iter(named), None)
        return ("vllm", "serve") if model is None else ("vllm", "serve", model)

    def _is_model(self, given: GivenFlag) -> bool:
        """Whether it names the model, which stands in front today."""
        return given.flag == "model" and len(given.values) == 1 and not self.command.bare

    def _environment(self) -> Iterator[tuple[str, str]]:
        for name, value in self.command.env.items():
            old = OLD_VARIABLES.get(name)
            if old is not None and (self.catalogue is None or name not in self.catalogue.variables):
                self._replace(old, f"{name}={value or ''}", value or "")
            elif value is not None:
                yield name, value

    def _is_replaced(self, given: GivenFlag) -> bool:
        """Whether the flag is not of today; what it means is noted then."""
        head = given.spelling.partition(".")[0]
        shown = " ".join((given.word, *given.values))
        if self._is_known(head):
            return False
        old = OLD_FLAGS.get(head)
        off = self.tables.turned_off(head)
        if old is not None:
            self._replace(old, shown, " ".join(given.values))
        elif off is not None and self._is_known(f"no-{off}"):
            set_flag(self.settings, off, False)
            self.changes.append(Translated(shown, "replaced", f"--no-{off}", "it is spelled so in every release"))
        else:
            near = self._nearest(head)
            self.changes.append(
                Translated(shown, "unknown", near or "leave it out", "neither vLLM nor any older release has it")
            )
        return True

    def _is_known(self, head: str) -> bool:
        if self.catalogue is not None:
            return self.catalogue.spelled(f"--{head}") is not None
        opposite = head.startswith(("disable-", "enable-")) and head not in self.tables.switches
        return head not in OLD_FLAGS and not opposite and self.tables.knows(head)

    def _nearest(self, head: str) -> str | None:
        near = None if self.catalogue is None else self.catalogue.nearest(head.lstrip("-"))
        return None if near is None else f"did you mean {near}?"

    def _replace(self, old: OldFlag, shown: str, value: str) -> None:
        cards = self._tensor_parallel_size()
        settings = settings_of(old, value, cards=cards) or {}
        already = self._set(settings)
        today = f"--{already[0]}, which the command sets already" if already else instead_of(old, value, cards=cards)
        self.changes.append(Translated(shown, old.fate.value, today, old.why))

    def _set(self, settings: Mapping[str, FlagValue]) -> list[str]:
        """Adds settings, less those that the command makes itself, which are given back."""
        given = {flag.flag for flag in self.words.given}
        for name, value in settings.items():
            if name not in given:
                set_flag(self.settings, name, value)
        return [name for name in settings if name in given]

    def _is_part_of_settings(self, given: GivenFlag) -> bool:
        return given.flag.partition(".")[0] in self.settings and given.switch is None

    def _merge(self, given: GivenFlag) -> None:
        """Puts what the command itself says of a JSON flag into the settings; it wins."""
        name, text = given.flag.removesuffix("+"), " ".join(given.values)
        if name != given.flag:
            items: list[JsonValue] = [typed_value(name, item, origin=_ORIGIN) for item in text.split(",")]
            set_flag(self.settings, name, items)
            return
        value = typed_value(name, text, origin=_ORIGIN, tables=self.tables)
        for path, leaf in value.items() if isinstance(value, dict) else ():
            if leaf is not None:
                set_flag(self.settings, f"{name}.{path}", leaf)
        if not isinstance(value, dict):
            set_flag(self.settings, name, value)

    def _tensor_parallel_size(self) -> int:
        for given in self.words.given:
            if given.flag == "tensor-parallel-size" and given.values and given.values[0].isdecimal():
                return int(given.values[0])
        return 1
