"""optuna-dashboard on a history, for looking only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from optimizer.core.errors import HostError
from optimizer.storage.dashboard_records import NoteOf, ShownRecords, StudyNote
from optimizer.storage.dashboard_storage import DashboardStorage, is_feasible
from optimizer.storage.store import StudyStore

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_STUDY_ROUTE = "/api/studies/<study_id:int>"
_READING = ("GET", "HEAD", "OPTIONS")
_REFUSAL = (
    "This dashboard only shows what vllm-autotune recorded: notes are written from the record, and studies and trials "
    "cannot be changed or deleted here."
)


def dashboard_app(store: StudyStore, note_of: NoteOf, study_note: StudyNote) -> WSGIApplication:
    """optuna-dashboard as a WSGI application that shows a history and refuses all changes.

    Args:
        store: The history; it must stay open for as long as the application is served.
        note_of: Gives a trial's note in Markdown.
        study_note: Gives a study's note in Markdown.

    Raises:
        HostError: optuna-dashboard is not installed, or the database cannot be used.
    """
    try:
        from optuna_dashboard import wsgi
    except ModuleNotFoundError as error:
        raise HostError(
            f"the dashboard needs optuna-dashboard: {error}", hint="pip install 'vllm-autotune[dashboard]'"
        ) from error
    storage = DashboardStorage(store, ShownRecords(store, note_of, study_note))
    app = wsgi(storage, artifact_store=storage.files)
    app.install(_NoInfeasibleBest())
    return _ReadOnly(app)


class _NoInfeasibleBest:
    """A Bottle plugin that takes infeasible trials out of a study's best ones: the dashboard always asks for one."""

    name = "no-infeasible-best"
    api = 2

    def apply(self, view: Callable[..., Any], route: Any) -> Callable[..., Any]:
        if route.method != "GET" or route.rule != _STUDY_ROUTE:
            return view

        def feasible_best(*args: Any, **kwargs: Any) -> Any:
            page = view(*args, **kwargs)
            if isinstance(page, dict) and "best_trials" in page:
                page["best_trials"] = [trial for trial in page["best_trials"] if is_feasible(trial["constraints"])]
            return page

        return feasible_best


class _ReadOnly:
    """Answers every request that would change something with 403 and the reason, which the dashboard shows."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in _READING:
            return self._app(environ, start_response)
        body = json.dumps({"reason": _REFUSAL}).encode()
        start_response("403 Forbidden", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]
