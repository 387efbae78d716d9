"""What `spaces` prints."""

from __future__ import annotations

import json

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from optimizer.app.spaces import SpaceSummary
from optimizer.report.layout import copyable, heading, labelled, plain_table
from optimizer.report.secrets import hide_secrets


def print_spaces(console: Console, spaces: list[SpaceSummary]) -> None:
    """Prints each space with what it is for."""
    for space in spaces:
        console.print(Text.assemble((space.name, "bold"), f"  {len(space.parameters)} parameters, model {space.model}"))
        if space.description:
            console.print(Padding(Text(space.description), (0, 0, 0, 4), expand=False))


def print_space(console: Console, space: SpaceSummary) -> None:
    """Prints what a space searches, under which limits, from which baseline."""
    console.print(Text(space.name, style="bold"))
    if space.description:
        console.print(Text(space.description))
    rows = [("model", space.model), ("objective", space.objective), ("limits", ", ".join(space.slos) or "none")]
    rows += [("trials", str(space.trials))]
    if space.baseline is not None:
        rows.append(("baseline", hide_secrets(" ".join(space.baseline.split()))))
    labelled(console, rows)
    heading(console, "parameters")
    conditional = any(parameter.condition for parameter in space.parameters)
    table = plain_table("parameter", "range", *(["only when"] if conditional else []))
    for column in table.columns[1:]:
        column.justify = "left"
    for parameter in space.parameters:
        table.add_row(parameter.name, parameter.domain, *([parameter.condition] if conditional else []))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    if space.rules:
        heading(console, "rules")
        for rule in space.rules:
            copyable(console, f"  {rule}")
    if space.fixed_flags:
        heading(console, "fixed flags")
        for name, value in space.fixed_flags.items():
            copyable(console, f"  {name}: {value if isinstance(value, str) else json.dumps(value)}")


def spaces_json(spaces: list[SpaceSummary]) -> str:
    """`spaces --json`."""
    listed = [
        {"name": s.name, "description": s.description, "model": s.model, "parameters": [p.name for p in s.parameters]}
        for s in spaces
    ]
    return json.dumps({"spaces": listed}, indent=2)


def space_json(space: SpaceSummary) -> str:
    """`spaces S --json`: the whole file, defaults filled in."""
    return json.dumps(space.data, indent=2)
