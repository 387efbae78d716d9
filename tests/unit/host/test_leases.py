"""One lease per card: between processes, users and deaths; the kernel frees it, and the message names the holder."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimizer.core.errors import HostError
from optimizer.host import leases
from optimizer.host.gpus import Gpu
from optimizer.host.leases import LeaseHolder, lease_file, lease_gpus
from tests.gpu.fake_nvml import card

CARDS = tuple(card(index) for index in range(3))
HOLDER = """
import sys
from pathlib import Path
from optimizer.host.gpus import Gpu
from optimizer.host.leases import lease_gpus
gpus = [Gpu(uuid, 0, "x", 1) for uuid in sys.argv[3:]]
taken = lease_gpus(gpus, int(sys.argv[2]), study="other", folder=Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""

Hold = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases"


@pytest.fixture
def hold(folder) -> Iterator[Hold]:
    """Another process that holds these cards, until it is killed or the test ends."""
    holders: list[subprocess.Popen[bytes]] = []

    def start(*gpus: Gpu, count: int = 1) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", HOLDER, str(folder), str(count), *(gpu.uuid for gpu in gpus)]
        holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        holders.append(holder)
        assert holder.stdout.readline() == b"held\n"
        return holder

    yield start
    for holder in holders:
        holder.communicate()


def lease(folder: Path, *gpus: Gpu, count: int = 1, study: str = "mine"):
    return lease_gpus(gpus, count, study=study, folder=folder)


def picks(folder: Path) -> int:
    """Take the turn of picking; closing the file ends it."""
    fd = leases._lock(folder / "picking")
    assert fd is not None
    return fd


def test_a_card_held_by_another_process_is_refused_and_the_holder_is_named(folder, hold):
    holder = hold(CARDS[0])
    with pytest.raises(HostError) as caught:
        lease(folder, CARDS[0])
    assert "GPU 0 (NVIDIA H200) is held by study other of " in caught.value.message
    assert f"(pid {holder.pid})" in caught.value.message
    assert caught.value.exit_code == 4


def test_the_next_free_card_is_taken(folder, hold):
    hold(CARDS[0])
    (taken,) = lease(folder, *CARDS)
    assert taken.gpu == CARDS[1]
    taken.release()


def test_a_killed_holder_leaves_the_card_free(folder, hold):
    holder = hold(CARDS[0])
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    (taken,) = lease(folder, CARDS[0])
    taken.release()


def test_a_released_card_is_free_at_once_and_a_held_one_is_not_even_for_its_holder(folder):
    (first,) = lease(folder, CARDS[0])
    with pytest.raises(HostError, match=f"held by study mine of .* \\(pid {os.getpid()}\\)"):
        lease(folder, CARDS[0])
    first.release()
    (second,) = lease(folder, CARDS[0])
    second.release()


def test_all_or_none(folder, hold):
    hold(CARDS[1])
    with pytest.raises(HostError, match=r"3 GPUs are needed, and of 3 that this study may use, 2 are free; GPU 1"):
        lease(folder, *CARDS, count=3)
    taken = lease(folder, *CARDS, count=2)
    assert [one.gpu.index for one in taken] == [0, 2]
    for one in taken:
        one.release()


def test_no_card_at_all(folder):
    with pytest.raises(HostError, match="a GPU is needed, and of none that this study may use, 0 are free"):
        lease(folder)


def test_two_that_pick_at_once_never_leave_each_other_with_too_few(folder, hold):
    """One picks while the other waits its turn: the second gets nothing, not a part."""
    lease(folder, CARDS[2])[0].release()  # makes the folder
    picking = picks(folder)
    outcome: list[str] = []
    thread = threading.Thread(target=lambda: outcome.append(str(len(lease(folder, *CARDS, count=3)))))
    thread.start()
    assert outcome == []
    os.close(picking)
    thread.join(timeout=10)
    assert outcome == ["3"]


def test_a_picker_that_never_ends_is_no_reason_to_wait_for_ever(folder, monkeypatch):
    lease(folder, CARDS[0])[0].release()
    monkeypatch.setattr(leases, "_PICK_LIMIT_S", 0.05)
    picking = picks(folder)
    with pytest.raises(HostError, match="picking a GPU"):
        lease(folder, CARDS[0])
    os.close(picking)


def test_the_folder_and_its_files_are_open_to_all_users_whatever_the_umask(folder):
    before = os.umask(0o077)
    try:
        (taken,) = lease(folder, CARDS[0])
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE(lease_file(CARDS[0], folder).stat().st_mode) == 0o666
    assert sorted(path.name for path in folder.iterdir()) == [CARDS[0].uuid, "picking"], "no draft is left"
    taken.release()


def test_a_file_of_another_user_is_opened_without_creating_it(folder, monkeypatch):
    """The kernel refuses `O_CREAT` on another user's file in a sticky folder (fs.protected_regular)."""
    lease(folder, CARDS[0])[0].release()
    flags: list[int] = []
    real = os.open

    def noted(path: Path, flag: int, *rest: int) -> int:
        flags.append(flag)
        return real(path, flag, *rest)

    monkeypatch.setattr(os, "open", noted)
    lease(folder, CARDS[0])[0].release()
    assert flags
    assert not any(flag & os.O_CREAT for flag in flags)


def test_a_file_that_was_cleaned_away_before_the_lock_is_not_mistaken_for_the_lease(folder, monkeypatch):
    lease(folder, CARDS[0])[0].release()
    path = lease_file(CARDS[0], folder)
    real = leases._open
    opened: list[int] = []

    def cleaned_meanwhile(wanted: Path) -> int:
        fd = real(wanted)
        if wanted == path and not opened:
            path.unlink()
        opened.append(fd)
        return fd

    monkeypatch.setattr(leases, "_open", cleaned_meanwhile)
    (taken,) = lease(folder, CARDS[0])
    assert os.path.samestat(os.fstat(taken._fd), path.stat())
    taken.release()


def test_a_lease_in_use_looks_used_to_whoever_cleans_up(folder):
    (taken,) = lease(folder, CARDS[0])
    path = lease_file(CARDS[0], folder)
    os.utime(path, (0, 0))
    taken.touch()
    assert path.stat().st_mtime > 1e9
    taken.release()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"user": "ann"}', b"x" * 10_000])
def test_a_holder_that_does_not_say_who_it_is(folder, content):
    (taken,) = lease(folder, CARDS[0])
    lease_file(CARDS[0], folder).write_bytes(content)
    with pytest.raises(HostError, match="held by a process that does not say who it is"):
        lease(folder, CARDS[0])
    taken.release()


def test_the_line_of_a_dead_holder_is_not_shown_for_the_living_one(folder, hold):
    holder = hold(CARDS[0])
    line = lease_file(CARDS[0], folder).read_bytes()
    holder.kill()
    holder.wait()
    (taken,) = lease(folder, CARDS[0])
    lease_file(CARDS[0], folder).write_bytes(line)
    with pytest.raises(HostError, match="does not say who it is"):
        lease(folder, CARDS[0])
    taken.release()


def test_what_another_user_wrote_moves_no_cursor():
    holder = LeaseHolder(user="a\x1b[2J", study="s\nt", host="h", boot_id="b", pid=1, start_ticks=1)
    assert holder.words == "study s?t of a?[2J (pid 1)"


@pytest.mark.parametrize("place", ["file", "link"])
def test_something_else_in_the_folders_place_is_refused(folder, place, tmp_path):
    if place == "file":
        folder.write_text("x")
    else:
        folder.symlink_to(tmp_path)
    with pytest.raises(HostError, match="GPUs cannot be leased"):
        lease(folder, CARDS[0])


def test_a_link_in_a_leases_place_is_not_followed(folder, tmp_path):
    lease(folder, CARDS[0])[0].release()
    target = tmp_path / "precious"
    target.write_text("kept")
    lease_file(CARDS[1], folder).symlink_to(target)
    with pytest.raises(HostError, match="GPUs cannot be leased"):
        lease(folder, CARDS[1])
    assert target.read_text() == "kept"


def test_a_slice_named_with_slashes_is_a_file_all_the_same(folder):
    old_name = Gpu("MIG-GPU-a/1/0", 0, "NVIDIA A100", 1)
    (taken,) = lease(folder, old_name)
    assert lease_file(old_name, folder).parent == folder
    taken.release()


def test_a_child_of_the_holder_does_not_keep_the_card(folder):
    """The guard outlives its optimizer for some seconds, and must not hold the lease meanwhile."""
    (taken,) = lease(folder, CARDS[0])
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        taken.release()
        (again,) = lease(folder, CARDS[0])
        again.release()
        child.kill()
