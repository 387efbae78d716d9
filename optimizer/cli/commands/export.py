"""`export`: launch flags to paste."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from optimizer.cli.console import show_note, show_warning, write_result
from optimizer.cli.options import StorageOption, StudyOption


class Form(enum.StrEnum):
    """Forms of `--format`; the same as `app.export.ExportFormat`, which `--help` need not load."""

    FLAGS = "flags"
    COMMAND = "command"
    JSON = "json"


def export(
    study: StudyOption = None,
    storage: StorageOption = None,
    form: Annotated[
        Form, typer.Option("--format", help="Flags in one line, the whole command, or JSON for scripts.")
    ] = Form.FLAGS,
    trial: Annotated[
        int | None, typer.Option("--trial", min=0, metavar="TRIAL", help="This trial instead of the best.")
    ] = None,
) -> None:
    """Print the launch flags of the best trial (exit code 3 when none is feasible)."""
    from optimizer.app.export import ExportFormat, export_setting

    exported = export_setting(storage, study, ExportFormat(form), trial)
    if exported.warning is not None:
        show_warning(exported.warning)
    if exported.note is not None:
        show_note(exported.note)
    write_result(exported.text)
