"""`translate`: old flags into today's."""

from __future__ import annotations

from typing import Annotated

import typer

from optimizer.cli import run_options as options
from optimizer.cli.console import result_console, write_result
from optimizer.cli.options import JsonOption
from optimizer.cli.pasted import pasted
from optimizer.core.errors import InputError


def translate(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="Flags of vLLM, or a whole `vllm serve MODEL --flags` after `--`."),
    ] = None,
    engine_python: options.EnginePythonOption = None,
    json: JsonOption = False,
) -> None:
    """Rewrite a command with old or invented flags for today's vLLM (exit code 2 when a flag is unknown)."""
    from optimizer.app.translate import translate as rewrite
    from optimizer.report.translate_view import print_translation

    text = pasted(command)
    if text is None:
        raise InputError("there is nothing to translate", hint="give it after --: translate -- --swap-space 16")
    view = rewrite(text, engine_python)
    if json:
        write_result(view.model_dump_json(indent=2))
    else:
        print_translation(result_console(), view)
    if not view.ok:
        unknown = ", ".join(change.flag.split()[0] for change in view.changes if change.outcome == "unknown")
        raise InputError(f"unknown, today and before: {unknown}", hint="the command above is without them")
