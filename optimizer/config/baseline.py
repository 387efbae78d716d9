"""Reads the serve command that a person runs today, pasted as it is, into model, flags and environment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from optimizer.config.flag_tables import DEPLOYMENT_VARIABLES, STATIC_TABLES, FlagTables, is_deployment_flag
from optimizer.config.flag_values import typed_value
from optimizer.config.flag_words import GivenFlag, Trouble, read_flag_words
from optimizer.config.secret_names import is_secret_setting, is_secret_variable
from optimizer.config.serve_words import serve_words
from optimizer.core.engine_config import FlagValue, JsonValue
from optimizer.core.errors import InputError
from optimizer.search_spaces import denied_reason, get_flag, merge_flags

STRAY_HINT = "a value with blanks needs quotes; a plain flag such as --enforce-eager takes no value"


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


def parse_serve_command(text: str, *, origin: str, tables: FlagTables = STATIC_TABLES) -> ServeCommand:
    """Reads `vllm serve …`, `python -m vllm.entrypoints.openai.api_server …`, `docker run … vllm …`, or bare flags.

    Args:
        text: As people have it: with line continuations, environment in front, redirections behind.
        origin: Where it came from, for messages: an option, or a file and key.
        tables: How many words each flag takes.

    Raises:
        InputError: It is no such command; the offending word is named.
    """
    command = serve_words(text, origin=origin)
    words = read_flag_words(command.words, takes_model=command.takes_model, tables=tables)
    if words.strays:
        raise InputError(f"{origin}: the word {words.strays[0]!r} belongs to no flag", hint=STRAY_HINT)
    typer = _Typer(origin, tables)
    for given in words.given:
        typer.add(given)
    flags = typer.merged()
    model = words.model
    named = flags.pop("model", None)
    if named is not None:
        if model is not None and model != str(named):
            raise InputError(f"{origin}: the command names two models, {model!r} and {named!r}", hint="keep one")
        model = str(named)
    left_out = [name for name in flags if _leave_out(name, flags[name])]
    dropped = [typer.spelled.get(name, name) for name in left_out]
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


@dataclass(slots=True)
class _Typer:
    """Gives each flag its typed value, from left to right."""

    origin: str
    tables: FlagTables
    spelled: dict[str, str] = field(default_factory=dict)
    """Flag to the name it was given under."""
    plain: dict[str, FlagValue] = field(default_factory=dict)
    dotted: dict[str, FlagValue] = field(default_factory=dict)

    def add(self, given: GivenFlag) -> None:
        trouble = given.trouble
        if given.flag == "config":
            trouble = Trouble(f"{given.word!r} names a file of flags", "paste the flags themselves")
        if trouble is not None:
            raise InputError(f"{self.origin}: {trouble.message}", hint=trouble.hint)
        self.spelled[given.flag.partition(".")[0]] = given.spelling
        if given.switch is not None:
            self.plain[given.flag] = given.switch
        elif "." in given.flag:
            self._add_key(given.flag, given.values[0])
        else:
            first, *rest = [self._typed(given.flag, value) for value in given.values]
            alone = not rest and (given.flag not in self.tables.lists or isinstance(first, list))
            self.plain[given.flag] = first if alone else [first, *rest]

    def merged(self) -> dict[str, FlagValue]:
        """All flags. vLLM puts the dotted keys of a flag behind a JSON object given whole, and the last one wins."""
        heads = {name.partition(".")[0] for name in self.dotted}
        whole = {name: value for name, value in self.plain.items() if name not in heads}
        return merge_flags(whole, self.dotted)

    def _add_key(self, flag: str, text: str) -> None:
        name = flag.removesuffix("+")
        if name == flag:
            self.dotted[name] = self._typed(name, text)
            return
        present = get_flag(self.dotted, name) if name not in self.dotted else self.dotted[name]
        items: list[JsonValue] = [self._typed(name, item) for item in text.split(",")]
        self.dotted[name] = (present if isinstance(present, list) else []) + items

    def _typed(self, flag: str, text: str) -> FlagValue:
        return typed_value(flag, text, origin=self.origin, tables=self.tables)
