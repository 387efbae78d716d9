"""`confirm`: the winner against the baseline on held-out traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from optimizer.cli import run_options as options
from optimizer.cli.console import progress_console, result_console, write_result
from optimizer.cli.invocation import this_command
from optimizer.cli.options import JsonOption, StorageOption, StudyOption
from optimizer.cli.values import parse_port_range
from optimizer.core.errors import Interrupted, NothingFeasible

if TYPE_CHECKING:
    from optimizer.app.confirm import ConfirmOutcome, ConfirmRequest


def confirm(
    study: StudyOption = None,
    storage: StorageOption = None,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", help="Runs of each of the two settings, recorded ones included.")
    ] = 3,
    engine_python: options.EnginePythonOption = None,
    port_range: options.PortRangeOption = None,
    json: JsonOption = False,
) -> None:
    """Measure the winner against the baseline on held-out traffic (exit code 3 when it is not confirmed)."""
    from optimizer.app.confirm import ConfirmRequest
    from optimizer.report.confirm_view import confirmation_view, print_confirmation

    ports = None if port_range is None else parse_port_range(port_range, "--port-range")
    outcome = _watch(ConfirmRequest(study, storage, repeats, engine_python, ports))
    shown = (outcome.study, outcome.trials, outcome.winner, outcome.confirmation)
    if json:
        write_result(confirmation_view(*shown).model_dump_json(indent=2))
    else:
        print_confirmation(result_console(), *shown)
    found = outcome.confirmation
    if found is not None and found.outcome.value != "confirmed":
        hint = "each further repeat narrows the interval: --repeats 6" if found.outcome.value == "undecided" else None
        raise NothingFeasible(f"trial {found.winner} of study {outcome.study.name} is {found.outcome}", hint=hint)


def _watch(request: ConfirmRequest) -> ConfirmOutcome:
    from optimizer.app.confirm import confirm as make
    from optimizer.report.confirm_progress import ConfirmProgress

    try:
        return make(request, ConfirmProgress(progress_console(), runs=2 * request.repeats))
    except (Interrupted, KeyboardInterrupt) as stop:
        message = stop.message if isinstance(stop, Interrupted) else "interrupted"
        raise Interrupted(message, hint=f"go on with: {this_command()}") from stop
