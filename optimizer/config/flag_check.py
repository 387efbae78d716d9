"""Holds flags against the installed vLLM: exact names, values that its parser takes, nothing that games the score.

vLLM itself takes any unique beginning of a flag's name for the flag, so that a slip of the pen may set another flag
than was meant. Here a name is exact or refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from optimizer.config.baseline import STRAY_HINT
from optimizer.config.flag_tables import FlagTables, tables_of
from optimizer.config.flag_values import typed_value
from optimizer.config.flag_words import GivenFlag, read_flag_words
from optimizer.config.old_forms import instead_of
from optimizer.config.secret_names import is_secret_setting
from optimizer.config.serve_words import serve_words
from optimizer.config.value_check import value_problems
from optimizer.core.engine_config import FlagValue, JsonValue, canonical_flag
from optimizer.core.errors import InputError
from optimizer.engine.vllm.catalogue import FlagCatalogue, FlagSpec
from optimizer.engine.vllm.old_flags import OLD_FLAGS, OLD_SWITCHES, OLD_VARIABLES
from optimizer.search_spaces import GAMING_VARIABLES, denied_variable_reason, gaming_reason

_LEAVE_OUT = "leave it out"
_TYPO_LIKENESS = 0.85


@dataclass(frozen=True, slots=True)
class FlagProblem:
    """One flag, value or variable that the engine would not take, or that would make a measurement untrue.

    Attributes:
        where: Where it stands: file and key, option, or `command`.
        flag: As it is written there, dashes included; a variable by its name.
        message: What is wrong, in a sentence that begins with the flag.
        instead: What to write in its place, or what to do; None when that is not known.
    """

    where: str
    flag: str
    message: str
    instead: str | None


@dataclass(frozen=True, slots=True)
class FlagChecker:
    """Checks what is launched.

    Attributes:
        catalogue: The flags of the engine.
        engine: What messages call it, such as `vLLM 0.32.0`.
        tables: How many words each of the flags takes.
    """

    catalogue: FlagCatalogue
    engine: str
    tables: FlagTables = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", tables_of(self.catalogue))

    def setting(self, flag: str, value: FlagValue, *, where: str) -> Iterator[FlagProblem]:
        """Problems of a flag with a typed value, as files and `--set` have it; the flag may be dotted."""
        name = canonical_flag(flag)
        head = name.partition(".")[0]
        spec = self.catalogue.flag(head)
        word = f"--{name}"
        if spec is None:
            yield self._unknown(word, head, (), where)
            return
        if f"--{head}" in spec.off:
            yield FlagProblem(where, word, f"{word} turns off {spec.name}", f"{spec.name}: false")
            return
        yield from self._value(spec, name, value, word, where)

    def command(self, text: str, *, where: str) -> list[FlagProblem]:
        """Problems of a command as it is pasted: every one, in the order of its words.

        Raises:
            InputError: It is no command that serves.
        """
        command = serve_words(text, origin=where)
        tables = self.tables.with_switches(OLD_SWITCHES)
        words = read_flag_words(command.words, takes_model=command.takes_model, tables=tables)
        problems = list(self.variables({name: value or "" for name, value in command.env.items()}, where=where))
        for given in words.given:
            problems += self._given(given, where)
        problems += [
            FlagProblem(where, word, f"the word {word!r} belongs to no flag", STRAY_HINT) for word in words.strays
        ]
        return problems

    def variables(self, env: Mapping[str, str], *, where: str) -> Iterator[FlagProblem]:
        """Problems of environment variables: those that are read no more, and those that game the score."""
        known = self.catalogue.variables
        for name, value in env.items():
            if name in GAMING_VARIABLES:
                message = f"{name} may not be set: {denied_variable_reason(name)}"
                yield FlagProblem(where, name, message, _LEAVE_OUT)
            elif name in known or not known or not name.startswith("VLLM_"):
                continue
            elif name in OLD_VARIABLES:
                old = OLD_VARIABLES[name]
                message = f"{name}: {self.engine} does not read it; {old.why}"
                yield FlagProblem(where, name, message, instead_of(old, value))
            else:
                near = difflib.get_close_matches(name, known, n=1, cutoff=_TYPO_LIKENESS)
                if near:
                    message = f"{name}: {self.engine} does not read it; did you mean {near[0]}?"
                    yield FlagProblem(where, name, message, near[0])

    def _given(self, given: GivenFlag, where: str) -> Iterator[FlagProblem]:
        head = given.spelling.partition(".")[0]
        spec = self.catalogue.flag(head)
        if not given.word.startswith("--") and given.trouble is not None:
            near = self.catalogue.nearest(head.lstrip("-"))
            yield FlagProblem(where, given.word, given.trouble.message, near or given.trouble.hint)
        elif spec is None:
            yield self._unknown(given.word, head, given.values, where)
        elif given.trouble is not None:
            yield FlagProblem(where, given.word, given.trouble.message, given.trouble.hint)
        elif spec.name == "config":
            message = f"{given.word} names a file of flags, which is not looked into"
            yield FlagProblem(where, given.word, message, "paste the flags themselves")
        elif not is_secret_setting(head):
            try:
                value = self._typed(given, where)
            except InputError as error:
                yield FlagProblem(where, given.word, error.message.removeprefix(f"{where}: "), error.hint)
                return
            yield from self._value(spec, given.spelling.removesuffix("+"), value, given.word, where)

    def _typed(self, given: GivenFlag, where: str) -> FlagValue:
        if given.switch is not None:
            return given.switch
        tables, name = self.tables, given.spelling
        if name.endswith("+"):
            return [typed_value(name[:-1], item, origin=where, tables=tables) for item in given.values[0].split(",")]
        values: list[JsonValue] = [typed_value(name, value, origin=where, tables=tables) for value in given.values]
        first = values[0]
        return values if len(values) > 1 or first is None else first

    def _value(self, spec: FlagSpec, name: str, value: FlagValue, word: str, where: str) -> Iterator[FlagProblem]:
        head, _, path = name.partition(".")
        nested = value
        if path:
            if not spec.takes_keys:
                yield FlagProblem(where, word, f"{word}: --{head} takes no keys", f"--{head} VALUE")
                return
            for key in reversed(path.split(".")):
                nested = {key: nested}
        reason = gaming_reason(name, value)
        if reason is not None:
            yield FlagProblem(where, word, f"{word} may not be set: {reason}", _LEAVE_OUT)
            return
        for problem in value_problems(spec, nested):
            yield FlagProblem(where, word, f"--{head} {problem}", None)

    def _unknown(self, word: str, head: str, values: tuple[str, ...], where: str) -> FlagProblem:
        old = OLD_FLAGS.get(head)
        if old is not None:
            never = ", nor had any release" if old.invented else ""
            message = f"{word}: {self.engine} has no such flag{never}; {old.why}"
            return FlagProblem(where, word, message, instead_of(old, " ".join(values)))
        message = f"{word}: {self.engine} has no such flag"
        off = f"--no-enable-{head.removeprefix('disable-')}"
        if head.startswith("disable-") and self.catalogue.spelled(off) is not None:
            return FlagProblem(where, word, message, off)
        longer = self.catalogue.completions(f"--{head}")
        near = longer[0] if len(longer) == 1 else self.catalogue.nearest(head)
        if len(longer) == 1:
            message += f", but would take it for {near}: write the name in full"
        elif near is not None:
            message += f"; did you mean {near}?"
        return FlagProblem(where, word, message, near)


def refused(problems: list[FlagProblem]) -> InputError:
    """One error that tells all problems, a line for each."""
    lines = []
    for problem in problems:
        remedy = "" if problem.instead is None else f"\n    instead: {problem.instead}"
        lines.append(f"{problem.where}: {problem.message}{remedy}")
    return InputError("\n".join(lines), hint="nothing was started; `check` tells the same without a run")
