from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing

import optuna
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from optimizer.core.errors import HostError
from optimizer.storage import open_store
from optimizer.storage.optuna_storage import optuna_storage
from optimizer.storage.schema import HEAD, VERSION_TABLE
from optimizer.storage.tables import metadata


def versions(file):
    with closing(sqlite3.connect(file)) as connection:
        return [
            connection.execute(f"SELECT version_num FROM {table}").fetchall()  # noqa: S608 - constants
            for table in (VERSION_TABLE, "alembic_version")
        ]


def test_head_is_the_newest_migration():
    config = Config()
    config.set_main_option("script_location", "optimizer.storage:migrations")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_the_migrations_make_the_tables_that_the_code_uses(store):
    def ours(_object, name, kind, *_):
        return kind != "table" or name.startswith("autotune_")

    with store._engine.connect() as connection:
        options = {"version_table": VERSION_TABLE, "include_object": ours, "compare_type": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_optuna_may_come_second(store, file):
    optuna.create_study(study_name="tiny", storage=optuna_storage(store))
    assert [len(rows) for rows in versions(file)] == [1, 1]
    with open_store(str(file)) as again:
        assert [study.name for study in again.studies()] == ["tiny"]


def test_optuna_may_come_first(file, records):
    first = optuna.storages.RDBStorage(f"sqlite:///{file}")
    optuna.create_study(study_name="theirs", storage=first)
    first.engine.dispose()
    with open_store(str(file)) as store:
        store.create_study(records.study)
        assert optuna.get_all_study_names(optuna_storage(store)) == ["theirs"]
        assert [study.name for study in store.studies()] == ["tiny"]
    assert [len(rows) for rows in versions(file)] == [1, 1]


@pytest.mark.parametrize("must_exist", [True, False])
def test_a_newer_schema_is_refused_and_left_alone(store, file, must_exist):
    store.close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")  # noqa: S608 - a constant
        connection.commit()
    with pytest.raises(HostError, match="schema 9999") as caught:
        open_store(str(file), must_exist=must_exist)
    assert "upgrade vllm-autotune" in (caught.value.hint or "")


def test_a_migration_that_fails_leaves_no_half_of_it(file):
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE autotune_attempts (id INTEGER)")
    with pytest.raises(HostError, match="already exists"):
        open_store(str(file))
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("autotune_attempts",)]


def test_processes_that_open_a_new_database_together_all_succeed(file):
    code = "import sys; from optimizer.storage import open_store; sys.stdin.readline(); open_store(sys.argv[1]).close()"
    command = [sys.executable, "-W", "error", "-c", code, str(file)]
    openers = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    assert [(opener.communicate(timeout=60)[1], opener.returncode) for opener in openers] == [("", 0)] * 3


def test_deleting_a_study_in_sql_takes_its_trials_along(store, records):
    store.put_trial(records.trial(0))
    store.begin_attempt("tiny", 0, records.attempt())
    with store._writer.begin() as connection:
        connection.execute(sa.text("DELETE FROM autotune_studies"))
        assert connection.scalar(sa.text("SELECT count(*) FROM autotune_attempts")) == 0
