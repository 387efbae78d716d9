"""A forked child maps the pages of libraries that its parent uses, as if it had read them itself."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from optimizer.engine.vllm.inside import warm_spare

FORKING = """
import mmap, os, sys
from optimizer.engine.vllm.inside import warm_spare

library = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
pages = library[: len(library) // 2]

def mapped():
    return sum(length for _, length in warm_spare._resident_file_runs())

def mapped_in_child():
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.write(theirs, str(mapped()).encode())
        os._exit(0)
    os.wait()
    return int(os.read(ours, 100))

before = mapped_in_child()
warm_spare._map_library_pages_in_children()
print(mapped(), before, mapped_in_child())
"""
MIB = 1024 * 1024


def test_a_child_maps_what_its_parent_has_in_use(tmp_path):
    library = tmp_path / "library"
    library.write_bytes(b"x" * 64 * MIB)
    done = subprocess.run([sys.executable, "-c", FORKING, str(library)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    parent, before, after = map(int, done.stdout.split())
    assert parent > 32 * MIB
    assert before < parent - 30 * MIB, "a kernel that copies the page tables of files needs none of this"
    assert parent - MIB < after < parent + 8 * MIB


def test_a_kernel_that_cannot_is_told_and_left_alone(monkeypatch, capsys):
    hooks = []

    def madvise(address: int, length: int, advice: int) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(madvise=madvise))
    monkeypatch.setattr(os, "register_at_fork", lambda **hook: hooks.append(hook))
    warm_spare._map_library_pages_in_children()
    assert hooks == []
    assert "KV pools are larger" in capsys.readouterr().err


@pytest.mark.parametrize("is_cpu", [True, False])
def test_it_is_done_on_the_cpu_alone(monkeypatch, is_cpu):
    done = []
    monkeypatch.setattr(sys, "argv", ["warm_spare.py", "guard.py"])
    monkeypatch.setattr(
        warm_spare,
        "_load_guard",
        lambda path: SimpleNamespace(die_with_parent=lambda: None, run=lambda spawn: done.append("served")),
    )
    monkeypatch.setattr(warm_spare, "_preload", lambda extra: None)
    monkeypatch.setattr(warm_spare, "_fork_engine_processes", lambda: None)
    monkeypatch.setattr(warm_spare, "_let_children_name_themselves", lambda: None)
    monkeypatch.setattr(warm_spare, "_is_cpu", lambda: is_cpu)
    monkeypatch.setattr(warm_spare, "_map_library_pages_in_children", lambda: done.append("mapped"))
    monkeypatch.setattr(os, "_exit", lambda code: done.append(f"exit {code}"))
    warm_spare.main()
    assert done == [*(["mapped"] if is_cpu else []), "served", "exit 0"]
