"""The database a history lies in: its URL, its connections, and its errors in words for a person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, NoSuchModuleError, ProgrammingError

from optimizer.core.errors import HostError, InputError

DEFAULT_FOLDER = "autotune"
"""Folder below the current directory that holds the default database and the files of its trials."""
DEFAULT_FILE = "studies.db"
BUSY_TIMEOUT_S = 60
"""How long a writer waits for another process's transaction on SQLite."""

_SQLITE = ("sqlite", "sqlite+pysqlite")
_POSTGRESQL = ("postgresql", "postgresql+psycopg")
_FILE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_URL_HINT = "give a path that ends in .db, sqlite:///PATH, or postgresql://USER:PASSWORD@HOST/DATABASE"

_GO_ON = "then run the same command again: it goes on where it stopped"
_CAUSES = (
    ("disk is full", "the disk is full", f"free some space, {_GO_ON}"),
    ("No space left", "the disk is full", f"free some space, {_GO_ON}"),
    ("file is not a database", "the file is no SQLite database", "give another path with --storage, or move it away"),
    ("malformed", "the file is damaged", "restore it from a copy, or give another path with --storage"),
    ("unable to open", "the file cannot be opened or created", "give a path in a writable folder with --storage"),
    ("readonly database", "the file cannot be written to", "give a path in a writable folder with --storage"),
    ("database is locked", f"another process has locked it for {BUSY_TIMEOUT_S} s", f"end that process, {_GO_ON}"),
)


def parse_url(text: str | None) -> URL:
    """The database that an option names, with a file path made absolute.

    Args:
        text: A URL, a path of an SQLite file, or None for `autotune/studies.db` below the current directory.

    Raises:
        InputError: It is neither, or names a database that is not supported.
    """
    if text is None:
        return _file_url(Path(DEFAULT_FOLDER) / DEFAULT_FILE)
    if "://" not in text:
        if not text.endswith(_FILE_SUFFIXES):
            raise InputError(f"--storage {text!r} names no database", hint=_URL_HINT)
        return _file_url(Path(text))
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # Its message would repeat the text, and a password with it.
        raise InputError("the URL given with --storage cannot be read", hint=_URL_HINT) from None
    if url.drivername in _SQLITE:
        if not url.database or url.database == ":memory:" or url.query:
            raise InputError(
                f"--storage {text!r} is no plain SQLite file, and a study must outlive its process", hint=_URL_HINT
            )
        return _file_url(Path(url.database))
    if url.drivername in _POSTGRESQL:
        # SQLAlchemy 2.0 takes the bare name for psycopg2, 2.1 for psycopg 3.
        return url.set(drivername="postgresql+psycopg")
    raise InputError(f"--storage: databases of kind {url.drivername!r} are not supported", hint=_URL_HINT)


def _file_url(path: Path) -> URL:
    absolute = str(path.expanduser().absolute())
    url = URL.create("sqlite", database=absolute)
    if make_url(url.render_as_string()).database != absolute:
        raise InputError(
            f"--storage {absolute!r}: the path has a character that a database URL cannot hold", hint=_URL_HINT
        )
    return url


def connect_arguments(url: URL) -> dict[str, Any]:
    """Keyword arguments for `create_engine` that this project's and Optuna's connections share."""
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": BUSY_TIMEOUT_S}}
    return {"pool_pre_ping": True}


def open_engine(url: URL) -> Engine:
    """An engine whose transactions begin as they should on SQLite; nothing is connected yet.

    Raises:
        HostError: The database's driver is not installed.
    """
    try:
        engine = create_engine(url, hide_parameters=True, **connect_arguments(url))
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise HostError(
            f"the driver for {url.render_as_string()} is not installed: {error}",
            hint="pip install 'vllm-autotune[postgresql]'",
        ) from error
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def use_write_ahead_log(connection: Any, _record: object) -> None:
    """Let readers go on while a writer writes, and sync at checkpoints: a crash of the process loses nothing."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def writing(engine: Engine) -> Engine:
    """The same engine for transactions that write.

    SQLite then takes its write lock at the beginning. A transaction that reads first and writes later fails at once,
    without waiting, when another process wrote in between.
    """
    return engine.execution_options(begin="BEGIN IMMEDIATE")


def _prepare_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver begins no transactions of its own
    use_write_ahead_log(connection, record)
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))


@contextmanager
def database_errors(url: URL) -> Iterator[None]:
    """Turn what the database refuses into errors for a person; errors of our own statements stay as they are.

    Raises:
        HostError: The database cannot be reached, read or written.
    """
    try:
        yield
    except (IntegrityError, DataError):
        raise
    except DBAPIError as error:
        reason = _first_line(error, url)
        if isinstance(error, ProgrammingError) and "permission denied" not in reason:
            raise
        raise _host_error(url, reason) from error


def _first_line(error: DBAPIError, url: URL) -> str:
    lines = str(error.orig).strip().splitlines()
    line = lines[0] if lines else type(error.orig).__name__
    return line.replace(url.password, "***") if url.password else line


def _host_error(url: URL, reason: str) -> HostError:
    where = f"the study history at {url.render_as_string()}"
    for fragment, cause, hint in _CAUSES:
        if fragment in reason:
            return HostError(f"{where} cannot be used: {cause} ({reason})", hint=hint)
    return HostError(
        f"{where} cannot be used: {reason}",
        hint="check that the database runs, that its address, user and password are right, and that it is not full",
    )
