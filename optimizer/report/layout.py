"""The few shapes that reports are printed in; none of them breaks a line that is meant to be copied."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def heading(console: Console, text: str) -> None:
    """A blank line and a title."""
    console.print()
    console.print(Text(text, style="bold"))


def copyable(console: Console, text: str) -> None:
    """Text that a person copies: never wrapped, cropped or styled."""
    console.print(Text(text), soft_wrap=True)


def labelled(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Lines of a label and a text to copy."""
    pairs = list(rows)
    width = max((len(label) for label, _ in pairs), default=0)
    for label, text in pairs:
        copyable(console, f"  {label:<{width}}  {text}")


def plain_table(*titles: str) -> Table:
    """A table whose first column is a label and whose others are figures, with a rule below the titles."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for position, title in enumerate(titles):
        table.add_column(title, justify="left" if position == 0 else "right", overflow="fold", no_wrap=position == 0)
    return table
