"""The two consoles: results go to stdout, all else to stderr. Neither takes a closed pipe for a fault of ours."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.text import Text

from optimizer.core.errors import AutotuneError, Interrupted
from optimizer.report.secrets import hide_secrets

_PIPE_COLUMNS = 120
"""Width of tables that go into a pipe or a file, where no terminal says how much room there is."""


class _ResultConsole(Console):
    def on_broken_pipe(self) -> None:
        """The reader has what it wanted: the command ends (see `cli.main`)."""
        raise BrokenPipeError


class _ProgressConsole(Console):
    def on_broken_pipe(self) -> None:
        """Nobody watches any more; the study goes on."""
        self.quiet = True


def result_console() -> Console:
    """Where a command's result goes."""
    return _ResultConsole(highlight=False, markup=False, width=_width(sys.stdout.isatty()))


def progress_console() -> Console:
    """Where progress, remarks and errors go."""
    return _ProgressConsole(highlight=False, markup=False, stderr=True, width=_width(sys.stderr.isatty()))


def write_result(text: str) -> None:
    """Writes text as it is, for scripts and for copying."""
    sys.stdout.write(f"{text}\n")


def show_warning(text: str) -> None:
    """A line on stderr."""
    _labelled("warning", text, "yellow")


def show_note(text: str) -> None:
    """A remark on stderr."""
    _labelled("note", text, "cyan")


def show_error(error: AutotuneError) -> None:
    """What is wrong, and on a line of its own what to do."""
    if isinstance(error, Interrupted):
        _labelled("stopped", error.message, "yellow")
    else:
        _labelled("error", error.message, "red")
    if error.hint is not None:
        _labelled("hint", error.hint, "cyan")


def _labelled(label: str, text: str, style: str) -> None:
    line = Text.assemble((f"{label}: ", f"bold {style}"), hide_secrets(text))
    progress_console().print(line, soft_wrap=True)


def _width(is_terminal: bool) -> int | None:
    return None if is_terminal or "COLUMNS" in os.environ else _PIPE_COLUMNS
