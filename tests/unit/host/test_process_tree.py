"""CPU time of a process with its children, and who listens on a port, seen on real processes and sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from optimizer.host import process_tree
from optimizer.host.process_tree import strangers_listen, tree, tree_cpu_s
from tests.waiting import until

BUSY_CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
LISTENER = """
import socket
with socket.socket() as listener:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", {port}))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    input()
"""


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, 9)
        process.communicate()


def test_the_work_of_children_counts():
    with running(BUSY_CHILD) as parent:
        until(lambda: len(tree(parent.pid)) == 2)
        before_s = tree_cpu_s(parent.pid)
        until(lambda: tree_cpu_s(parent.pid) > before_s + 0.2)


def test_a_process_that_is_gone_has_used_nothing():
    process = subprocess.Popen(["true"])
    process.wait()
    assert tree(process.pid) == []
    assert tree_cpu_s(process.pid) == 0.0


def listening_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_listener_of_the_tree_is_no_stranger():
    with running(LISTENER.format(port=0)) as server:
        port = listening_port(server)
        assert not strangers_listen(server.pid, port)
        assert not strangers_listen(os.getpid(), port), "it is a child of ours"


def test_a_listener_outside_of_the_tree_is_a_stranger():
    with running(LISTENER.format(port=0)) as server, running("input()") as other:
        assert strangers_listen(other.pid, listening_port(server))


def test_of_two_that_share_a_port_one_is_a_stranger():
    with running(LISTENER.format(port=0)) as ours:
        port = listening_port(ours)
        with running(LISTENER.format(port=port)) as theirs:
            assert listening_port(theirs) == port
            assert strangers_listen(ours.pid, port)
            assert strangers_listen(theirs.pid, port)
            assert not strangers_listen(os.getpid(), port)


def test_nobody_on_a_port_is_no_stranger():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert not strangers_listen(os.getpid(), bound.getsockname()[1]), "it is bound and does not listen"


def test_files_that_may_not_be_read_tell_nothing(monkeypatch):
    def forbidden(_pid: int) -> Iterator[str]:
        raise PermissionError

    monkeypatch.setattr(process_tree, "_sockets", forbidden)
    with running(LISTENER.format(port=0)) as server, running("input()") as other:
        assert not strangers_listen(other.pid, listening_port(server))


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])  # noqa: S104
def test_one_that_listens_everywhere_is_seen(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener, running("input()") as other:
        listener.bind((address, 0))
        listener.listen()
        assert strangers_listen(other.pid, listener.getsockname()[1])
