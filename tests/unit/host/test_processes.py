"""Who a process is: no other process, later or elsewhere, is taken for it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from optimizer.host.guard import Seen
from optimizer.host.processes import boot_id, identity_of, is_alive, name_processes, own_identity, tell_survivors


def test_this_process_lives():
    own = own_identity()
    assert (own.pid, own.boot_id) == (os.getpid(), boot_id())
    assert own.start_ticks > 0
    assert is_alive(own)
    assert own == identity_of(os.getpid())


def test_a_process_that_ended_is_gone():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        identity = identity_of(child.pid)
        assert is_alive(identity)
    assert not is_alive(identity)


def test_a_process_that_nobody_has_collected_is_gone():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        identity = identity_of(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(identity)


def test_a_pid_that_is_free_has_no_identity_that_lives():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    identity = identity_of(child.pid)
    assert identity.start_ticks == 0
    assert not is_alive(identity)


def test_another_process_under_the_same_pid_is_another():
    own = own_identity()
    assert not is_alive(replace(own, start_ticks=own.start_ticks + 1))


def test_a_process_of_another_boot_or_host_is_gone():
    assert not is_alive(replace(own_identity(), boot_id="00000000-0000-0000-0000-000000000000"))


def test_processes_that_could_not_be_ended_are_named():
    left = [Seen(4711, 1, 1, 4711, 4711, "VLLM::EngineCor"), Seen(4712, 1, 1, 4711, 4711, "python")]
    told = tell_survivors(f"{name_processes(left)} of the engine")
    assert told == "4711 (VLLM::EngineCor), 4712 (python) of the engine survive SIGKILL and may hold memory"
