"""Console entry: the commands, and how trouble becomes a message and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from optimizer import __version__
from optimizer.cli.commands.check import check
from optimizer.cli.commands.confirm import confirm
from optimizer.cli.commands.dashboard import dashboard
from optimizer.cli.commands.export import export
from optimizer.cli.commands.measure import MeasureCommand, measure
from optimizer.cli.commands.run import run
from optimizer.cli.commands.show import show
from optimizer.cli.commands.spaces import spaces
from optimizer.cli.commands.status import status
from optimizer.cli.commands.translate import translate
from optimizer.cli.commands.workloads import workloads
from optimizer.cli.console import show_error
from optimizer.cli.faults import install_fault_report
from optimizer.cli.invocation import program
from optimizer.core.errors import AutotuneError


class _Commands(TyperGroup):
    """Turns what a command raises into a message on stderr and the exit code of its kind."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the chosen command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except AutotuneError as error:
            show_error(error)
            raise typer.Exit(error.exit_code) from error
        except BrokenPipeError as error:
            # What is still buffered would fail once more when the interpreter flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from error
        return result


app = typer.Typer(
    cls=_Commands,
    help="Tunes the launch flags of a vLLM server under a P99 limit, and proves the result.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vllm-autotune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


for command in (run, check, confirm, status, show, export, spaces, workloads, translate, dashboard):
    app.command()(command)
app.command(cls=MeasureCommand)(measure)


def main() -> None:
    """Runs the command line; exits with 0 to 4 or 130 (see `optimizer.core.errors`)."""
    install_fault_report()
    get_command(app)(prog_name=program())
