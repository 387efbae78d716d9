"""`spaces`: the built-in search spaces."""

from __future__ import annotations

from typing import Annotated

import typer

from optimizer.cli.console import result_console, write_result
from optimizer.cli.options import JsonOption


def spaces(
    space: Annotated[
        str | None, typer.Argument(metavar="[SPACE]", help="Built-in space or path of a space file; all when left out.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the built-in search spaces, or show one."""
    from optimizer.app.spaces import list_spaces, read_space
    from optimizer.cli.space_view import print_space, print_spaces, space_json, spaces_json

    if space is None:
        listed = list_spaces()
        if json:
            write_result(spaces_json(listed))
        else:
            print_spaces(result_console(), listed)
        return
    shown = read_space(space)
    if json:
        write_result(space_json(shown))
    else:
        print_space(result_console(), shown)
