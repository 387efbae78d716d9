"""Temporary files and shared memory: what is an engine's goes, what is another's stays."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import pytest

from optimizer.core.errors import HostError
from optimizer.host.guard import remove_scratch
from optimizer.host.scratch import make_scratch, remove_shared_memory, shared_memory_of

MARK = "0123456789ab"


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_socket_with_a_name_as_long_as_vllms_fits_in(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    with tempfile.TemporaryDirectory(prefix="x" * 20, dir="/tmp") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        folder = make_scratch(MARK)
        assert folder is not None
        assert folder.stat().st_mode & 0o777 == 0o700
        below = folder / "1234"
        below.mkdir()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(below / ("s" * 36)))
        remove_scratch(str(folder), MARK)
        assert list(Path(base).iterdir()) == []


def test_there_is_none_where_sockets_would_have_too_long_a_path(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert make_scratch(MARK) is None
    assert list(deep.iterdir()) == []


def test_a_folder_that_cannot_be_is_a_fault_of_the_host(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(HostError, match="cannot create folder /proc/autotune-") as refused:
        make_scratch(MARK)
    assert "TMPDIR" in str(refused.value.hint)


@pytest.mark.parametrize("name", ["autotune-ffff", "home", f"autotune-{MARK}x"])
def test_no_folder_of_another_name_is_removed(tmp_path, name):
    (tmp_path / name).mkdir()
    remove_scratch(str(tmp_path / name), MARK)
    remove_scratch(None, MARK)
    assert (tmp_path / name).is_dir()


@pytest.fixture
def segment():
    """Shared memory that a process has mapped and does not remove."""
    shared = shared_memory.SharedMemory(create=True, size=4096)
    resource_tracker.unregister(f"/{shared.name}", "shared_memory")
    path = Path("/dev/shm") / shared.name  # noqa: S108
    yield path
    shared.close()
    path.unlink(missing_ok=True)


def test_mapped_segments_are_found_and_removed(segment):
    assert segment in shared_memory_of([os.getpid()])
    remove_shared_memory([segment], since_s=time.time() - 60)
    assert not segment.exists()
    assert segment not in shared_memory_of([os.getpid()]), "one that is unlinked is nobody's to remove"
    remove_shared_memory([segment], since_s=0.0)


def test_a_segment_older_than_the_launch_stays(segment):
    remove_shared_memory([segment], since_s=time.time() + 60)
    assert segment.exists()


def test_processes_that_are_gone_have_mapped_nothing():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert shared_memory_of([process.pid]) == set()
