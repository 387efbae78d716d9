from __future__ import annotations

import builtins
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from optimizer.core.errors import AutotuneError, HostError, InputError
from optimizer.storage import database, open_store
from optimizer.storage.database import parse_url


def test_the_default_lies_below_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store(None) as store:
        assert store.display_url == f"sqlite:///{tmp_path}/autotune/studies.db"
        assert store.folder("tiny") == tmp_path / "autotune" / "tiny"
    assert (tmp_path / "autotune" / "studies.db").is_file()


@pytest.mark.parametrize("text", ["there/mine.db", "sqlite:///there/mine.db"])
def test_a_file_may_be_given_as_path_or_url_and_stays_put(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    with open_store(text) as store:
        monkeypatch.chdir("/")
        assert store.optuna_url == f"sqlite:///{tmp_path}/there/mine.db"
        assert store.studies() == []
        assert store.folder("tiny") == tmp_path / "there" / "tiny"


@pytest.mark.parametrize(
    "text",
    ["studies", "sqlite://", "sqlite:///:memory:", "sqlite:///a.db?mode=ro", "mysql://u:secret@h/db", "x://"],
)
def test_what_names_no_database_is_wrong_input(text):
    with pytest.raises(InputError) as caught:
        open_store(text)
    assert caught.value.hint is not None
    assert "secret" not in caught.value.message


def test_an_unreadable_url_does_not_repeat_its_password():
    with pytest.raises(InputError) as caught:
        parse_url("postgresql://u:secret@host:port/db")
    assert "secret" not in caught.value.message


def test_a_missing_driver_is_a_fault_of_the_host(monkeypatch):
    real_import = builtins.__import__

    def no_psycopg(name, *args, **kwargs):
        if name.startswith("psycopg"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_psycopg)
    with pytest.raises(HostError, match="driver") as caught:
        open_store("postgresql://u:secret@127.0.0.1/db")
    assert "secret" not in caught.value.message
    assert caught.value.hint == "pip install 'vllm-autotune[postgresql]'"


def test_passwords_are_hidden_but_for_optuna():
    url = parse_url("postgresql://u:secret@127.0.0.1/db")
    assert url.drivername == "postgresql+psycopg"
    assert "secret" not in str(url)
    assert "secret" in url.render_as_string(hide_password=False)


def test_what_the_server_says_is_told_without_the_password():
    url = parse_url("postgresql://u:secret@127.0.0.1/db")
    refused = sa.exc.OperationalError("SELECT 1", {}, Exception('connection failed for "u" with secret\nmore'))
    with pytest.raises(HostError) as caught, database.database_errors(url):
        raise refused
    where = "postgresql+psycopg://u:***@127.0.0.1/db"
    assert caught.value.message == f'the study history at {where} cannot be used: connection failed for "u" with ***'


def test_faults_of_our_own_statements_are_not_blamed_on_the_host(file):
    with pytest.raises(sa.exc.ProgrammingError), database.database_errors(parse_url(str(file))):
        raise sa.exc.ProgrammingError("SELECT 1", {}, Exception("syntax error"))


@pytest.mark.parametrize("must_exist", [True, False])
def test_a_file_that_is_no_database_is_left_alone(file, must_exist):
    file.write_bytes(b"these are my notes, not a database, and they are long enough" * 20)
    before = file.read_bytes()
    with pytest.raises(HostError, match="no SQLite database"):
        open_store(str(file), must_exist=must_exist)
    assert file.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_the_hosts_fault(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot create folder"):
        open_store(str(tmp_path / "file" / "studies.db"))


def test_a_file_that_cannot_be_opened_is_the_hosts_fault(tmp_path):
    (tmp_path / "studies.db").mkdir()
    with pytest.raises(HostError, match="cannot be opened or created"):
        open_store(str(tmp_path / "studies.db"))


def test_a_folder_that_takes_no_files_is_the_hosts_fault():
    with pytest.raises(HostError, match="cannot be opened or created"):
        open_store("/proc/studies.db")


def test_a_server_that_is_not_there_is_the_hosts_fault(monkeypatch, file):
    def refuse(engine):
        raise sa.exc.OperationalError("", {}, Exception("connection to server failed: Connection refused"))

    monkeypatch.setattr("optimizer.storage.store.migrate", refuse)
    with pytest.raises(HostError, match="Connection refused") as caught:
        open_store(str(file))
    assert caught.value.hint is not None


def test_a_full_disk_is_told_and_the_record_stays_readable(store, records):
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()

    def limit(connection, _record):
        connection.execute(f"PRAGMA max_page_count={pages + 2}")

    sa.event.listen(store._engine, "connect", limit)
    store._engine.dispose()
    with pytest.raises(HostError, match="the disk is full") as caught:
        for number in range(1000):
            store.put_trial(records.trial(number))
    assert "run the same command again" in (caught.value.hint or "")
    sa.event.remove(store._engine, "connect", limit)
    store._engine.dispose()
    found = store.trials("tiny")
    assert [trial.number for trial in found] == list(range(len(found)))
    store.put_trial(records.trial(len(found)))


def test_a_file_that_another_process_holds_is_waited_for_then_told(store, file, records, monkeypatch):
    def hurry(connection, _record):
        connection.execute("PRAGMA busy_timeout=20")

    sa.event.listen(store._engine, "connect", hurry)
    store._engine.dispose()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(HostError, match="another process has locked it"):
        store.put_trial(records.trial(0))
    assert store.trials("tiny") == []
    other.execute("COMMIT")
    other.close()
    store.put_trial(records.trial(0))


def test_connections_are_set_up_for_one_writer_and_many_readers(store):
    with store._engine.connect() as connection:
        settings = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]
    assert settings == ["wal", 1, 1, 60_000]


@pytest.mark.parametrize("absent", ["autotune/studies.db", "elsewhere/mine.db"])
def test_looking_for_a_history_creates_nothing(tmp_path, monkeypatch, absent):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"no study history at {tmp_path / absent}"):
        open_store(None if absent.startswith("autotune") else absent, must_exist=True)
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_something_else_holds_no_history(file):
    other = sqlite3.connect(file)
    other.execute("CREATE TABLE notes (line TEXT)")
    other.close()
    with pytest.raises(InputError, match="no study history"):
        open_store(str(file), must_exist=True)
    other = sqlite3.connect(file)
    assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("notes",)]
    other.close()


def test_a_history_that_exists_is_opened(store, file):
    with open_store(str(file), must_exist=True) as second:
        assert [study.name for study in second.studies()] == ["tiny"]


def test_a_row_that_others_changed_is_told(store, file, records):
    store.put_trial(records.trial(0))
    other = sqlite3.connect(file)
    other.execute("UPDATE autotune_trials SET config = '{\"colour\": 1}'")
    other.commit()
    other.close()
    with pytest.raises(HostError, match="record of trial 0 of study tiny cannot be read"):
        store.trials("tiny")


def test_a_study_named_like_a_path_has_no_folder(store):
    with pytest.raises(InputError):
        store.folder("../outside")
    with pytest.raises(AutotuneError):
        store.folder("")
    assert store.folder("tiny").parent == Path(store.url.database).parent
