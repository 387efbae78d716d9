"""The command lines that a report gives to copy."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StudyCommands:
    """Commands on one study, each ready to paste.

    Attributes:
        program: How this program was started: `vllm-autotune` or `python -m optimizer`.
        study: The study's name.
        storage: What `--storage` was given, password hidden; None for the default database.
        resume: The command that goes on with the study; None where there is none to give.
    """

    program: str
    study: str
    storage: str | None = None
    resume: str | None = None

    def export(self) -> str:
        """Gives the best setting as a command."""
        return self._line("export", "--format", "command")

    def show(self, trial: int) -> str:
        """Shows one trial in full."""
        return self._line("show", str(trial))

    def confirm(self) -> str:
        """Measures the best trial against the baseline on held-out traffic."""
        return self._line("confirm")

    def dashboard(self) -> str:
        """Serves the study to a browser."""
        return self._line("dashboard")

    def _line(self, *words: str) -> str:
        storage = [] if self.storage is None else ["--storage", self.storage]
        return f"{self.program} {shlex.join([words[0], *words[1:], '--study', self.study, *storage])}"
