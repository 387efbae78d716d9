"""What the soak calls a leftover is found: a look that sees nothing would let everything pass."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from contextlib import closing

import pytest

from tests.soak.leftovers import open_fds, port_left, processes_left
from tests.soak.plan import ASSAULTS, MODIFIERS, OUTCOMES, draw_cycles

SLEEPER = "print(flush=True); import sys, time; time.sleep(60)"


@pytest.fixture
def sleep_with():
    """Starts a process that sleeps, with more words on its command line and in its environment."""
    started = []

    def starting(*words, **env):
        process = subprocess.Popen(
            [sys.executable, "-ISc", SLEEPER, *words], env=env, start_new_session=True, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout.readline() == b"\n"
        return process.pid

    yield starting
    for process in started:
        process.kill()
        process.communicate()


def test_a_process_is_found_by_session_environment_command_line_and_descent(sleep_with):
    mark = f"soak-{secrets.token_hex(4)}/1/1"
    pid = sleep_with()
    assert processes_left(mark, leader=pid, guard=1 << 30) == [f"process {pid} in the engine's session"]
    marked = sleep_with(AUTOTUNE_TRIAL=mark)
    assert processes_left(mark, leader=None, guard=1 << 30) == [f"process {marked} by its environment"]
    mark = f"{mark}/other"
    daemon = sleep_with(mark)
    assert processes_left(mark, leader=None, guard=1 << 30) == [f"process {daemon} by its command line"]
    below = {f"process {child} below the guard" for child in (pid, marked)}
    assert below <= set(processes_left(mark, leader=None, guard=os.getpid()))


def test_a_port_is_found_whether_it_answers_or_is_only_bound():
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert "cannot be bound" in port_left(port)[0]
        server.listen()
        assert port_left(port) == [f"port {port} answers"]
    assert port_left(port) == []


def test_an_open_file_is_counted(tmp_path):
    before = open_fds()
    with (tmp_path / "file").open("w"):
        assert open_fds() == before + 1
    assert open_fds() == before


def test_two_hundred_cycles_hold_every_fault_and_every_assault():
    cycles = draw_cycles(1, 200)
    assert cycles == draw_cycles(1, 200)
    assert {entry["fault"] for cycle in cycles for entry in cycle.faults} == {*OUTCOMES, *MODIFIERS}
    assert {cycle.assault for cycle in cycles} == {None, *ASSAULTS}
