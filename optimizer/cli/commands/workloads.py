"""`workloads`: the built-in workloads."""

from __future__ import annotations

from typing import Annotated

import typer

from optimizer.cli.console import result_console, write_result
from optimizer.cli.options import JsonOption


def workloads(
    workload: Annotated[
        str | None,
        typer.Argument(metavar="[WORKLOAD]", help="Built-in workload or path of a workload file; all when left out."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the built-in workloads, or show what one sends."""
    from optimizer.app.workloads import list_workloads, read_workload
    from optimizer.cli.workload_view import print_workload, print_workloads, workload_json, workloads_json

    if workload is None:
        listed = list_workloads()
        if json:
            write_result(workloads_json(listed))
        else:
            print_workloads(result_console(), listed)
        return
    shown = read_workload(workload)
    if json:
        write_result(workload_json(shown))
    else:
        print_workload(result_console(), shown)
