"""The version of the tables in a database, and the way to the present one.

Optuna keeps its revision in alembic's default table of the same database, so ours has a table of its own.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, column, inspect, select, table, text

from optimizer.core.errors import HostError

VERSION_TABLE = "autotune_alembic_version"
HEAD = "0002"
"""The newest revision under `migrations/versions`."""

_MIGRATION_LOCK = 7_305_112_043
"""Any number that other programs on a shared PostgreSQL server are unlikely to lock."""


def revision_of(connection: Connection) -> str | None:
    """The revision of the tables in the database, or None when it holds none of ours."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.scalar(select(column("version_num")).select_from(table(VERSION_TABLE)))
    return None if found is None else str(found)


def migrate(writer: Engine) -> None:
    """Create the tables or bring them up to date, in one transaction. Does nothing when they are.

    Args:
        writer: Begins transactions that hold the write lock (see `database.writing`).

    Raises:
        HostError: A newer version of this program made them.
    """
    with writer.connect() as connection:
        if revision_of(connection) == HEAD:
            return
    with writer.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        _upgrade(connection)


def _upgrade(connection: Connection) -> None:
    # Alembic is slow to import, and needed only for a database that is not up to date.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "optimizer.storage:migrations")
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    found = revision_of(connection)
    if found is not None and found not in known:
        raise HostError(
            f"the study history at {connection.engine.url.render_as_string()} has schema {found}, "
            f"and this version of vllm-autotune knows schemas up to {HEAD}",
            hint="pip install --upgrade vllm-autotune",
        )
    command.upgrade(config, "head")
