"""Reads the serve command that a person runs today, pasted as it is, into model, flags and environment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from optimizer.config.flag_tables import (
    BOOLEAN_FLAGS,
    DEPLOYMENT_VARIABLES,
    LIST_FLAGS,
    SAME_FLAGS,
    SHORT_FLAGS,
    VALUE_FLAGS,
    is_deployment_flag,
)
from optimizer.config.flag_values import typed_value
from optimizer.config.secret_names import is_secret_setting, is_secret_variable
from optimizer.config.serve_words import serve_words
from optimizer.core.engine_config import FlagValue, JsonValue, canonical_flag
from optimizer.core.errors import InputError
from optimizer.search_spaces import denied_reason, get_flag, merge_flags

_NUMBER = re.compile(r"-\.?\d")
_SHORT = re.compile(r"-([A-Za-z]+)(\..+)?")
_SHORT_WITH_NUMBER = re.compile(r"-([A-Za-z]+)(\d+)")
_TRUTHS = {"true", "false", "1", "0", "yes", "no"}


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """A serve command without what belongs to a deployment.

    Attributes:
        model: The model it names, or None.
        flags: Canonical flag to typed value, dotted flags merged into JSON objects.
        env: Environment variables it sets.
        dropped: What was left out, by name and without a value: deployment flags, flags that would game the score,
            secrets.
    """

    model: str | None
    flags: dict[str, FlagValue]
    env: dict[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, JsonValue]:
        """The command as plain JSON, for the identity of a study."""
        return {"model": self.model, "flags": dict(self.flags), "env": dict(self.env)}


def parse_serve_command(text: str, *, origin: str) -> ServeCommand:
    """Reads `vllm serve …`, `python -m vllm.entrypoints.openai.api_server …`, `docker run … vllm …`, or bare flags.

    Args:
        text: As people have it: with line continuations, environment in front, redirections behind.
        origin: Where it came from, for messages: an option, or a file and key.

    Raises:
        InputError: It is no such command; the offending word is named.
    """
    command = serve_words(text, origin=origin)
    reader = _FlagReader(list(command.words), command.takes_model, origin)
    reader.read_all()
    flags = reader.merged()
    model = reader.model
    named = flags.pop("model", None)
    if named is not None:
        if model is not None and model != str(named):
            raise InputError(f"{origin}: the command names two models, {model!r} and {named!r}", hint="keep one")
        model = str(named)
    left_out = [name for name in flags if _leave_out(name, flags[name])]
    dropped = [reader.spelled.get(name, name) for name in left_out]
    env: dict[str, str] = {}
    for name, value in command.env.items():
        if value is None or name in DEPLOYMENT_VARIABLES or is_secret_variable(name, value):
            dropped.append(name)
        else:
            env[name] = value
    kept = {name: value for name, value in flags.items() if name not in left_out}
    return ServeCommand(model, kept, env, tuple(dropped))


def _leave_out(flag: str, value: FlagValue) -> bool:
    unwanted = is_deployment_flag(flag) or denied_reason(flag) is not None or is_secret_setting(flag)
    return unwanted or any(is_secret_setting(key) for key in _keys(value))


def _keys(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NUMBER.match(word)


@dataclass(slots=True)
class _FlagReader:
    """Goes through vLLM's own words from left to right."""

    words: list[str]
    takes_model: bool
    origin: str
    model: str | None = None
    spelled: dict[str, str] = field(default_factory=dict)
    """Flag to the name it was given under."""
    plain: dict[str, FlagValue] = field(default_factory=dict)
    dotted: dict[str, FlagValue] = field(default_factory=dict)

    def read_all(self) -> None:
        while self.words:
            word = self.words.pop(0)
            if _is_flag(word):
                self._read_flag(word)
            elif self.takes_model and self.model is None:
                self.model = word
            else:
                raise InputError(
                    f"{self.origin}: the word {word!r} belongs to no flag",
                    hint="a value with blanks needs quotes; a plain flag such as --enforce-eager takes no value",
                )

    def merged(self) -> dict[str, FlagValue]:
        """All flags. vLLM puts the dotted keys of a flag behind a JSON object given whole, and the last one wins."""
        heads = {name.partition(".")[0] for name in self.dotted}
        whole = {name: value for name, value in self.plain.items() if name not in heads}
        return merge_flags(whole, self.dotted)

    def _read_flag(self, word: str) -> None:
        name, has_value, value = word.partition("=")
        flag, attached = self._name(name, word)
        base = SAME_FLAGS.get(flag, flag)
        if base == "config":
            raise InputError(f"{self.origin}: {word!r} names a file of flags", hint="paste the flags themselves")
        negated = self._negated(base)
        self.spelled[(negated or base).partition(".")[0]] = flag
        if attached is not None:
            self._store(base, attached)
            return
        if negated is not None or base in BOOLEAN_FLAGS:
            self._store_switch(negated or base, negated is None, word, value if has_value else None)
        elif has_value:
            self._store(base, value)
        elif base in LIST_FLAGS:
            self._store_list(base, word)
        elif self.words and not _is_flag(self.words[0]):
            self._store(base, self.words.pop(0))
        elif "." in base or base in VALUE_FLAGS:
            raise InputError(f"{self.origin}: {word!r} has no value", hint=f"write {word} VALUE")
        else:
            self.plain[base] = True

    def _name(self, name: str, word: str) -> tuple[str, str | None]:
        """The canonical flag, and the value when it is attached to a short form, as in -O2 or -tp4."""
        if name.startswith("--"):
            return canonical_flag(name), None
        short = _SHORT.fullmatch(name)
        if short is not None and short[1] in SHORT_FLAGS:
            return SHORT_FLAGS[short[1]] + (short[2] or ""), None
        numbered = _SHORT_WITH_NUMBER.fullmatch(name)
        if numbered is not None and numbered[1] in SHORT_FLAGS:
            return SHORT_FLAGS[numbered[1]], numbered[2]
        raise InputError(
            f"{self.origin}: {word!r} is no flag of vLLM", hint="long flags begin with two dashes; known short ones: "
            + ", ".join(f"-{known}" for known in SHORT_FLAGS)
        )  # fmt: skip

    def _negated(self, flag: str) -> str | None:
        """The flag that `no-x` or `disable-x` turns off, or None when it turns nothing off."""
        if flag in BOOLEAN_FLAGS:
            return None
        if flag.startswith("no-"):
            return flag.removeprefix("no-")
        positive = f"enable-{flag.removeprefix('disable-')}"
        return positive if flag.startswith("disable-") and positive in BOOLEAN_FLAGS else None

    def _store_switch(self, flag: str, on: bool, word: str, value: str | None) -> None:
        follows = self.words[0].lower() if self.words else ""
        if value is not None or follows in _TRUTHS:
            raise InputError(
                f"{self.origin}: {word!r} takes no value, but {value if value is not None else follows!r} is given",
                hint=f"write --{flag} or --no-{flag}",
            )
        self.plain[flag] = on

    def _store(self, flag: str, text: str) -> None:
        appends = flag.endswith("+")
        name = flag.removesuffix("+")
        if "." not in name:
            value = typed_value(name, text, origin=self.origin)
            self.plain[name] = [value] if name in LIST_FLAGS and not isinstance(value, list) else value
            return
        if not appends:
            self.dotted[name] = typed_value(name, text, origin=self.origin)
            return
        present = get_flag(self.dotted, name) if name not in self.dotted else self.dotted[name]
        items: list[JsonValue] = [typed_value(name, item, origin=self.origin) for item in text.split(",")]
        self.dotted[name] = (present if isinstance(present, list) else []) + items

    def _store_list(self, flag: str, word: str) -> None:
        values: list[JsonValue] = []
        while self.words and not _is_flag(self.words[0]):
            values.append(typed_value(flag, self.words.pop(0), origin=self.origin))
        if not values:
            raise InputError(f"{self.origin}: {word!r} has no value", hint=f"write {word} VALUE [VALUE …]")
        self.plain[flag] = values
