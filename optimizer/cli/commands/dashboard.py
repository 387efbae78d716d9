"""`dashboard`: optuna-dashboard on a history."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from optimizer.cli.console import progress_console
from optimizer.cli.options import StorageOption, StudyOption


def dashboard(
    study: StudyOption = None,
    storage: StorageOption = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Serve optuna-dashboard on the history until Ctrl-C."""
    from optimizer.app.dashboard import open_dashboard

    with open_dashboard(storage, study, host=host, port=port) as server:
        progress_console().print(f"dashboard at {server.url} (Ctrl-C ends it)", soft_wrap=True)
        # Ctrl-C is how a server is meant to end: no interruption, exit code 0.
        with suppress(KeyboardInterrupt):
            server.serve_forever()
