"""Optuna's own tables, kept in the same database as the history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from optimizer.core.errors import HostError
from optimizer.storage.database import connect_arguments, database_errors, use_write_ahead_log
from optimizer.storage.store import StudyStore


def optuna_storage(store: StudyStore) -> RDBStorage:
    """Optuna's storage on the database of a history; its tables are created where they are missing.

    It has no heartbeat: Optuna beats it in `study.optimize` alone, and the history knows which owners are gone.
    Optuna's messages below warnings are silenced for the whole process.

    Raises:
        HostError: The database cannot be used, or another version of Optuna made its tables.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with optuna_errors(store):
        storage = RDBStorage(**storage_arguments(store))
    if store.url.get_backend_name() == "sqlite":
        event.listen(storage.engine, "connect", use_write_ahead_log)
        storage.engine.dispose()  # connections made so far did not hear the event
    return storage


def storage_arguments(store: StudyStore) -> dict[str, Any]:
    """What `RDBStorage` and its subclasses are made with."""
    # RDBStorage formats the URL as a template.
    url = store.optuna_url.replace("{", "{{").replace("}", "}}")
    return {"url": url, "engine_kwargs": {"hide_parameters": True, **connect_arguments(store.url)}}


@contextmanager
def optuna_errors(store: StudyStore) -> Iterator[None]:
    """Turn what the database refuses to Optuna into the errors that the history raises.

    Raises:
        HostError: The database cannot be reached, read or written, or its Optuna tables have another schema.
    """
    try:
        with database_errors(store.url):
            try:
                yield
            except StorageInternalError as error:
                if isinstance(error.__cause__, DBAPIError):
                    raise error.__cause__ from error
                raise
    except RuntimeError as error:
        # What Optuna raises for the tables of another version; its other uses of the type carry no such words.
        if "table schema" not in str(error):
            raise
        raise HostError(
            f"Optuna {optuna.__version__} cannot read its tables in {store.display_url}: {error}",
            hint="bring the tables up to date with `optuna storage upgrade`, or give another database with --storage",
        ) from error
