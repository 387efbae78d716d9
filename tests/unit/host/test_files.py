"""Files that are whole or absent, and the lock that dies with its holder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from optimizer.core.errors import HostError
from optimizer.host.files import exclusive_lock, keep_file, make_folder, write_json

HOLDER = """
import sys
from pathlib import Path
from optimizer.host.files import exclusive_lock
with exclusive_lock(Path(sys.argv[1]), what="study s"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(lock: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], **pipes) as process:
        try:
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def test_a_written_file_is_read_back(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"b": [1, 2.5, None], "a": "ä"})
    assert json.loads(file.read_text()) == {"b": [1, 2.5, None], "a": "ä"}
    assert list(tmp_path.iterdir()) == [file]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"old": True})
    (tmp_path / "a.json.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_json(file, {"new": True})
    assert json.loads(file.read_text()) == {"old": True}


def test_a_failed_write_makes_no_file(tmp_path):
    (tmp_path / "a.json.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "a.json", {"new": True})
    assert not (tmp_path / "a.json").exists()


def test_a_file_that_must_not_be_missed_is_written_or_is_a_fault_of_the_host(tmp_path):
    kept = tmp_path / "kept.txt"
    keep_file(kept, lambda to: to.write_text("all of it"))
    assert kept.read_text() == "all of it"
    missing = tmp_path / "gone" / "kept.txt"
    with pytest.raises(HostError, match=f"cannot write {missing}: No such file") as caught:
        keep_file(missing, lambda to: to.write_text("none of it"))
    assert caught.value.hint.startswith("free some space")
    with pytest.raises(HostError) as caught:
        keep_file(missing, lambda to: to.write_text("none of it"), hint="make the folder")
    assert caught.value.hint == "make the folder"


def test_a_folder_is_made_with_its_parents_and_once_more(tmp_path):
    assert make_folder(tmp_path / "a/b") == make_folder(tmp_path / "a/b") == tmp_path / "a/b"
    assert (tmp_path / "a/b").is_dir()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_a_fault_of_the_host(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot create folder") as refused:
        make_folder(tmp_path / name)
    assert str(tmp_path / name) in refused.value.message
    assert "--storage" in str(refused.value.hint)


def test_a_second_process_is_refused_and_told_the_pid(tmp_path):
    lock = tmp_path / "lock"
    with holder(lock) as other, pytest.raises(HostError) as refused, exclusive_lock(lock, what="study s"):
        pass
    assert "study s is being run by another process" in refused.value.message
    assert f"(pid {other.pid})" in refused.value.message


def test_sigkill_of_the_holder_frees_the_lock(tmp_path):
    lock = tmp_path / "lock"
    with holder(lock) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        with exclusive_lock(lock, what="study s"):
            assert lock.read_text() != str(other.pid)


def test_the_lock_is_free_after_the_block_even_if_it_raised(tmp_path):
    lock = tmp_path / "lock"
    with pytest.raises(ZeroDivisionError), exclusive_lock(lock, what="study s"):
        _ = 1 / 0
    with exclusive_lock(lock, what="study s"):
        pass


def test_a_lock_that_cannot_be_written_is_a_fault_of_the_host(tmp_path):
    with pytest.raises(HostError, match="cannot write"), exclusive_lock(tmp_path, what="study s"):
        pass
