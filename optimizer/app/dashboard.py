"""`dashboard`: optuna-dashboard on a history, served from this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from optimizer.app.history import choose_study, open_history
from optimizer.core.errors import HostError
from optimizer.report.notes import note_of, study_note


class DashboardServer(ThreadingMixIn, WSGIServer):
    """Answers requests on threads, so that one slow plot does not hold up the page."""

    daemon_threads = True

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/dashboard"


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """A line for each request would hide what matters."""


@contextmanager
def open_dashboard(storage: str | None, study: str | None, *, host: str, port: int) -> Iterator[DashboardServer]:
    """A server that listens already; `serve_forever` answers until `shutdown` or Ctrl-C.

    Args:
        storage: What `--storage` was given; None for the default database.
        study: A study that must be there, or None.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.

    Raises:
        InputError: There is no history, or no such study in it.
        HostError: The port cannot be had, or optuna-dashboard is not installed.
    """
    # Loads Optuna, which no other reading command needs.
    from optimizer.storage.dashboard import dashboard_app

    with open_history(storage) as store:
        if study is not None:
            choose_study(store, study)
        app = dashboard_app(store, note_of, study_note)
        try:
            server = make_server(host, port, app, server_class=DashboardServer, handler_class=_QuietHandler)
        except OSError as error:
            raise HostError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                hint="choose another --port; 0 takes a free one",
            ) from error
        with server:
            yield server
