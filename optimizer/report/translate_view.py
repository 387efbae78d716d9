"""What `translate` says of a command."""

from __future__ import annotations

import shlex
from typing import Literal

from pydantic import Field
from rich.console import Console
from rich.text import Text

from optimizer.report.layout import copyable, heading
from optimizer.report.secrets import hide_secrets
from optimizer.report.view import View

_SAID = {
    "replaced": "replaced by",
    "needless": "needless:",
    "gone": "gone:",
    "related": "no equal:",
    "unknown": "unknown:",
}


class ChangeView(View):
    """One flag or variable that is not of today."""

    flag: str = Field(description="As it was written, with its value.")
    outcome: Literal["replaced", "needless", "gone", "related", "unknown"] = Field(description="What became of it.")
    today: str = Field(description="Today's flags in place of it, or what to do.")
    why: str = Field(description="What became of it, in a sentence.")


class TranslationView(View):
    """`translate --json`."""

    ok: bool = Field(description="Whether every flag is known, today or from older days.")
    command: str = Field(description="Today's command, ready to paste; secrets are masked.")
    argv: list[str] = Field(description="The same as words, without variables.")
    env: dict[str, str] = Field(description="Variables in front of it.")
    changes: list[ChangeView] = Field(description="What was changed.")
    kept: int = Field(description="Flags that stand as they were.")
    known_from: str = Field(description="What flags of today were told by.")


def command_text(env: dict[str, str], argv: list[str]) -> str:
    """Variables and words as one line for a shell."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in env.items()), shlex.join(argv)])


def print_translation(console: Console, view: TranslationView) -> None:
    """Prints today's command, and what became of each flag that was not of today."""
    copyable(console, view.command)
    if view.changes:
        heading(console, f"changed ({view.kept} kept, by {view.known_from})")
    for change in view.changes:
        console.print(Text.assemble("  ", (hide_secrets(change.flag), "bold")), soft_wrap=True)
        copyable(console, f"    {_SAID[change.outcome]} {hide_secrets(change.today)}")
        copyable(console, f"    {hide_secrets(change.why)}")
    if not view.changes:
        copyable(console, f"nothing is to be changed, by {view.known_from}")
