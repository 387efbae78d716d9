"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

StudyOption: TypeAlias = Annotated[
    str | None, typer.Option("--study", metavar="NAME", help="The study; may be left out when there is only one.")
]
StorageOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--storage", metavar="URL", help="Database of the history, or path of an SQLite file.", show_default=False
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
