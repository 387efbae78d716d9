"""`check`: look before GPU time is spent."""

from __future__ import annotations

from typing import Annotated

import typer

from optimizer.cli import run_options as options
from optimizer.cli.console import result_console, show_note, write_result
from optimizer.cli.options import JsonOption
from optimizer.cli.pasted import pasted
from optimizer.cli.startup import without_collection
from optimizer.core.errors import InputError


def check(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND]", help="Flags of vLLM, or a whole `vllm serve MODEL --flags` after `--`."),
    ] = None,
    space: Annotated[
        str | None, typer.Option("--space", metavar="SPACE", help="Built-in search space or path of a space file.")
    ] = None,
    trials: options.TrialsOption = None,
    baseline: options.BaselineOption = None,
    objective: options.ObjectiveOption = None,
    slo: options.SloOption = None,
    workload: options.WorkloadOption = None,
    model: options.ModelOption = None,
    set_flags: options.SetOption = None,
    engine: options.EngineOption = None,
    engine_python: options.EnginePythonOption = None,
    json: JsonOption = False,
) -> None:
    """Check a space or a command: flags against the installed vLLM, settings, memory, time (exit code 2 when wrong)."""
    with without_collection():
        from optimizer.app.check import CheckRequest
        from optimizer.app.check import check as look
        from optimizer.app.request import RunRequest
        from optimizer.report.check_view import print_check

    run = None
    if space is not None:
        run = RunRequest(
            space=space,
            trials=trials,
            baseline=baseline,
            objective=objective,
            slos=tuple(slo or ()),
            workload=workload,
            model=model,
            set_flags=tuple(set_flags or ()),
            engine=engine,
            engine_python=engine_python,
        )
    request = CheckRequest(run, pasted(command), engine or "vllm", engine_python)
    view = look(request, notice=show_note)
    if json:
        write_result(view.model_dump_json(indent=2))
    else:
        print_check(result_console(), view)
    if not view.ok:
        raise InputError(f"{view.subject}: {view.verdict}", hint=None if json else "see above")
