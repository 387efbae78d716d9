from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing

import optuna
import pytest

from optimizer.core.errors import HostError, InputError
from optimizer.storage import open_store
from optimizer.storage.optuna_storage import optuna_errors, optuna_storage

READER = """
import sys, optuna
from optimizer.storage import open_store
from optimizer.storage.optuna_storage import optuna_storage
with open_store(sys.argv[1], must_exist=True) as store:
    study = optuna.load_study(study_name="tiny", storage=optuna_storage(store))
    trial = study.ask()
    print([(t.number, t.state.name, t.value, t.params, t.constraints, t.user_attrs) for t in study.get_trials()])
"""


def test_asking_and_telling_is_seen_by_another_process(store, file, capfd):
    study = optuna.create_study(study_name="tiny", storage=optuna_storage(store), direction="maximize")
    trial = study.ask()
    trial.suggest_int("max-num-seqs", 1, 64)
    trial.set_user_attr("state", "feasible")
    trial.set_constraint("p99_e2e_ms", -0.25)
    study.tell(trial, 812.5)
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", READER, str(file)], capture_output=True, text=True, check=True, timeout=60
    )
    params, constraints, attributes = trial.params, {"p99_e2e_ms": -0.25}, {"state": "feasible"}
    assert said.stdout.strip() == str(
        [(0, "COMPLETE", 812.5, params, constraints, attributes), (1, "RUNNING", None, {}, {}, {})]
    )
    assert said.stderr == ""
    assert capfd.readouterr().err == ""


def test_connections_write_ahead_and_wait(store):
    storage = optuna_storage(store)
    with storage.engine.connect() as connection:
        found = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "busy_timeout")
        ]
    assert found == ["wal", 1, 60_000]
    assert storage.get_heartbeat_interval() is None
    storage.engine.dispose()


@pytest.mark.parametrize("name", ["{SCHEMA_VERSION}.db", "{.db", "a b%20c.db", "a?b.db", "a#b&c.db"])
def test_optuna_opens_the_very_same_file(tmp_path, name):
    try:
        store = open_store(str(tmp_path / name))
    except InputError:
        return  # SQLAlchemy 2.0 cannot write every path as a URL
    with store:
        optuna.create_study(study_name="tiny", storage=optuna_storage(store))
    with closing(sqlite3.connect(tmp_path / name)) as connection:
        assert connection.execute("SELECT study_name FROM studies").fetchall() == [("tiny",)]
        assert connection.execute("SELECT count(*) FROM autotune_studies").fetchall() == [(0,)]


def test_tables_of_another_optuna_are_refused(store, file):
    optuna_storage(store).engine.dispose()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v9.9.9.a'")
        connection.commit()
    with pytest.raises(HostError, match="cannot read its tables") as caught:
        optuna_storage(store)
    assert "optuna storage upgrade" in (caught.value.hint or "")


def test_what_the_database_refuses_to_optuna_is_told_as_the_history_tells_it(store, file):
    storage = optuna_storage(store)
    study = optuna.create_study(study_name="tiny", storage=storage)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE study_user_attributes")
    told = f"the study history at sqlite:///{file} cannot be used: no such table"
    with pytest.raises(HostError, match=told), optuna_errors(store):
        study.set_user_attr("space", "tiny")


def test_errors_that_are_not_the_databases_pass(store):
    with pytest.raises(RuntimeError, match="another"), optuna_errors(store):
        raise RuntimeError("another")
