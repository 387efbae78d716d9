"""The command that measures each trial in place of an engine of our own: `--evaluator`."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from optimizer.config.secret_names import is_secret_setting, is_secret_variable
from optimizer.core.errors import InputError

EXTERNAL: Final = "external"
"""Kind of an engine that is somebody else's: it is neither launched nor looked at."""
DEFAULT_TIMEOUT_S: Final = 3600.0
"""A large model that is scheduled, loaded, warmed up and measured elsewhere takes the better part of an hour."""
_ORIGIN = "--evaluator"


@dataclass(frozen=True, slots=True)
class Evaluator:
    """An external evaluator.

    Attributes:
        words: Its program and arguments.
        timeout_s: One that has not ended by then hangs.
    """

    words: tuple[str, ...]
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def command(self) -> str:
        """As a shell would take it: equal for equal words, however they were quoted."""
        return shlex.join(self.words)


def parse_evaluator(text: str, *, timeout_s: float | None = None, origin: str = _ORIGIN) -> Evaluator:
    """Reads the command and makes sure that its program can be started. No shell ever sees it.

    Args:
        text: Words as in a shell, quotes included.
        timeout_s: Longest run of one trial; None for an hour.
        origin: Where the text came from, for messages.

    Raises:
        InputError: It has no words or an open quote, holds a secret, or names no program that can be started.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"{origin} {text!r}: {error}", hint="close the quote") from None
    if not words or not words[0]:
        raise InputError(
            f"{origin} {text!r}: there is no command", hint='such as --evaluator "python3 my_evaluator.py"'
        )
    if "\0" in text:
        raise InputError(f"{origin}: the command holds a NUL character", hint="leave it out")
    _refuse_secrets(words, origin)
    _find_program(words[0], origin)
    return Evaluator(words, DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s)


def _refuse_secrets(words: tuple[str, ...], origin: str) -> None:
    """The command is recorded, and shown to whoever reads the study."""
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        option = word.startswith("-") and is_secret_setting(name)
        if option or is_secret_variable(name if equals else "", value or word):
            raise InputError(
                f"{origin}: {name.partition('://')[0]} looks like a secret, and the command is recorded",
                hint="set it in the shell: the evaluator inherits the environment, and no record holds that",
            )


def _find_program(name: str, origin: str) -> None:
    if shutil.which(name) is not None:
        return
    path = Path(name)
    if "/" not in name:
        here = f"; there is a file {name} here" if path.is_file() else ""
        raise InputError(
            f"{origin}: no program {name!r} on PATH{here}",
            hint=f"write ./{name}" if here else "give its path, or install it",
        )
    if not path.exists():
        raise InputError(f"{origin}: there is no program {name!r} (from {Path.cwd()})", hint="check the path")
    if path.is_dir():
        raise InputError(f"{origin}: {name!r} is a folder, not a program", hint="give the path of a program")
    allowed = "" if os.access(path, os.X_OK) else "chmod +x it and begin it with a #! line, or "
    raise InputError(
        f"{origin}: {name!r} cannot be executed", hint=f"{allowed}name the interpreter: --evaluator 'python3 {name}'"
    )
