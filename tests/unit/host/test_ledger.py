"""The ledger: what is kept of a guard, who may judge it, and files that are none of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from optimizer.core.errors import HostError
from optimizer.host.guard import ProcessKey
from optimizer.host.ledger import STATE_VARIABLE, EngineLedger, LedgerEntry, open_ledger, pid_namespace
from optimizer.host.processes import own_identity

MARK = "0123456789ab"


def entry(**changes: Any) -> LedgerEntry:
    own = own_identity()
    plain = {
        "host": own.host,
        "boot_id": own.boot_id,
        "pid_namespace": pid_namespace(),
        "mark": MARK,
        "owner": ProcessKey(own.pid, own.start_ticks),
        "guard": ProcessKey(4711, 1),
    }
    return LedgerEntry(**(plain | changes))


@pytest.fixture
def ledger(tmp_path: Path) -> EngineLedger:
    return EngineLedger(tmp_path)


def test_an_entry_is_read_as_it_was_written(ledger):
    full = entry(leader=ProcessKey(4712, 2), trial="study/0/1", scratch="/somewhere/autotune-0123456789ab")
    ledger.write(full)
    assert ledger.view().entries == (full,)
    assert ledger.view().notes == ()


def test_a_guard_has_one_file_which_is_renewed_and_removed(ledger):
    ledger.write(entry())
    renewed = entry(leader=ProcessKey(4712, 2))
    ledger.write(renewed)
    assert ledger.view().entries == (renewed,)
    (ledger.folder / f"{MARK}.json.tmp").write_text("of a write that was cut off")
    ledger.remove(MARK)
    assert list(ledger.folder.iterdir()) == []
    ledger.remove(MARK)


def test_its_owner_is_known_by_more_than_a_pid():
    own = own_identity()
    assert entry().owner_lives
    assert not entry(owner=ProcessKey(own.pid, own.start_ticks + 1)).owner_lives
    assert not entry(boot_id="00000000-0000-0000-0000-000000000000").owner_lives


@pytest.mark.parametrize("elsewhere", [{"host": "another"}, {"pid_namespace": "pid:[1]"}])
def test_entries_of_other_hosts_and_containers_are_left_alone(ledger, elsewhere):
    ledger.write(entry(**elsewhere))
    view = ledger.view()
    assert (view.entries, view.notes) == ((), ())
    assert len(list(ledger.folder.iterdir())) == 1


def test_entries_of_an_earlier_boot_are_removed(ledger):
    ledger.write(entry(boot_id="00000000-0000-0000-0000-000000000000"))
    assert ledger.view().entries == ()
    assert list(ledger.folder.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"mark": "0123456789ab"}',
        json.dumps({**entry().model_dump(mode="json"), "version": 2}).encode(),
        json.dumps({**entry().model_dump(mode="json"), "more": 1}).encode(),
        json.dumps({**entry().model_dump(mode="json"), "mark": "../../etc/passwd"}).encode(),
        json.dumps({**entry().model_dump(mode="json"), "guard": [1]}).encode(),
    ],
)
def test_what_is_no_entry_is_moved_aside_and_told_once(ledger, content):
    (ledger.folder / "x.json").write_bytes(content)
    ledger.write(entry())
    view = ledger.view()
    assert view.entries == (entry(),)
    (note,) = view.notes
    assert str(ledger.folder / "x.json") in note
    assert "moved to x.unreadable" in note
    assert (ledger.folder / "x.unreadable").read_bytes() == content
    assert ledger.view().notes == ()


def test_what_cannot_be_read_or_moved_is_told(ledger, monkeypatch):
    (ledger.folder / "x.json").mkdir()
    monkeypatch.setattr(Path, "replace", _refuse)
    (note,) = ledger.view().notes
    assert "Is a directory" in note
    assert "cannot be moved aside (Read-only file system)" in note


def _refuse(*_: object) -> None:
    raise OSError(30, "Read-only file system")


def test_a_file_that_cannot_be_written_is_a_fault_of_the_host(ledger):
    (ledger.folder / f"{MARK}.json.tmp").symlink_to("/dev/full")
    with pytest.raises(HostError, match="No space left") as refused:
        ledger.write(entry())
    assert STATE_VARIABLE in str(refused.value.hint)


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({STATE_VARIABLE: "{home}/own", "XDG_STATE_HOME": "{home}/xdg"}, "own/engines"),
        ({"XDG_STATE_HOME": "{home}/xdg"}, "xdg/vllm-autotune/engines"),
        ({"XDG_STATE_HOME": "relative"}, ".local/state/vllm-autotune/engines"),
        ({STATE_VARIABLE: "", "XDG_STATE_HOME": ""}, ".local/state/vllm-autotune/engines"),
    ],
)
def test_it_lies_in_the_users_state_unless_told_otherwise(tmp_home, monkeypatch, variables, where):
    monkeypatch.delenv(STATE_VARIABLE)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home=tmp_home))
    folder = open_ledger().folder
    assert folder == tmp_home / where
    assert folder.is_dir()


def test_a_folder_that_cannot_be_is_refused_with_the_variable_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv(STATE_VARIABLE, "/proc/nowhere")
    with pytest.raises(HostError, match="/proc/nowhere") as refused:
        open_ledger()
    assert STATE_VARIABLE in str(refused.value.hint)
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(HostError, match="cannot write to folder"):
        open_ledger()
