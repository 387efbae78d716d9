"""One lease per GPU across all processes of a host: two studies on one card would measure each other.

A lease is an exclusive `flock` on a file named after the card's UUID. The kernel lets go of it when the holder dies,
however it dies, so no stale lease exists. The file's content names the holder, for the message to whoever comes second.

The folder lies in `/tmp`, not in `$TMPDIR` or `$XDG_RUNTIME_DIR`: leases of different users must meet, and those two
differ by user. It is world-writable and sticky, as `/tmp` is, since nobody knows which user comes first; files may be
written by all, for the same reason. A file is never deleted: a second holder could then lock another one of that name.
It is no protection against ill will, and does not reach into a container; the look at the card's memory does.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from optimizer.core.errors import HostError
from optimizer.core.record import ProcessIdentity
from optimizer.host.gpus import Gpu
from optimizer.host.processes import is_alive, own_identity

LEASE_FOLDER = Path("/tmp/vllm-autotune-gpu-leases")  # noqa: S108 (opened without following links, see `_open`)

_PICKING = "picking"
_PICK_LIMIT_S = 5.0
_PICK_POLL_S = 0.02
_CONTENT_LIMIT_BYTES = 4096


class LeaseHolder(BaseModel):
    """Who holds a lease, as its file says. Any user can write it: good for a message, never for a decision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str = Field(max_length=100, description="Login name.")
    study: str = Field(max_length=200, description="Name of the study.")
    host: str = Field(max_length=200, description="Host name.")
    boot_id: str = Field(max_length=100, description="The kernel's id of the boot.")
    pid: int = Field(description="The optimizer's process.")
    start_ticks: int = Field(description="Its start in clock ticks since boot.")

    @property
    def words(self) -> str:
        """Such as `study tiny of ann (pid 4242)`."""
        return f"study {_printable(self.study)} of {_printable(self.user)} (pid {self.pid})"

    @property
    def lives(self) -> bool:
        """Whether that very process runs; a line of an earlier holder stands until the next one has written its own."""
        return is_alive(ProcessIdentity(self.host, self.boot_id, self.pid, self.start_ticks))


class GpuLease:
    """A card that is ours until `release` or the end of this process."""

    def __init__(self, gpu: Gpu, fd: int) -> None:
        self.gpu = gpu
        self._fd = fd

    def touch(self) -> None:
        """Make the file look used, so that no cleaner of temporary files takes it for an old one."""
        os.utime(self._fd)

    def release(self) -> None:
        """Give the card back."""
        os.close(self._fd)

    def _write(self, holder: LeaseHolder) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, holder.model_dump_json().encode(), 0)

    @classmethod
    def take(cls, gpu: Gpu, holder: LeaseHolder, folder: Path) -> Self | None:
        """Lease the card; None while another process holds it."""
        fd = _lock(lease_file(gpu, folder))
        if fd is None:
            return None
        lease = cls(gpu, fd)
        lease._write(holder)
        return lease


def lease_gpus(candidates: Sequence[Gpu], count: int, *, study: str, folder: Path = LEASE_FOLDER) -> list[GpuLease]:
    """Lease `count` of these cards, the first ones that are free; all or none.

    Raises:
        HostError: Too few are free, and the message names who holds which; or leases cannot be kept on this host.
    """
    holder = _ourselves(study)
    taken: list[GpuLease] = []
    held: list[str] = []
    try:
        _make_folder(folder)
        # One at a time picks, or two that want several cards each could leave each other with too few.
        with _picking(folder):
            for gpu in candidates:
                if len(taken) == count:
                    break
                lease = GpuLease.take(gpu, holder, folder)
                if lease is None:
                    held.append(f"{gpu.label} is held by {_holder_words(lease_file(gpu, folder))}")
                else:
                    taken.append(lease)
    except OSError as error:
        _release(taken)
        raise HostError(
            f"GPUs cannot be leased in {folder}: {error.strerror}",
            hint="the folder must be one that all users can write to (chmod 1777), and its files too (chmod 666)",
        ) from error
    if len(taken) < count:
        _release(taken)
        raise HostError(_too_few(len(candidates), count, held), hint="wait for them, or use CUDA_VISIBLE_DEVICES")
    return taken


def lease_file(gpu: Gpu, folder: Path = LEASE_FOLDER) -> Path:
    """Where the lease of a card lies. Older drivers name a MIG slice with slashes."""
    return folder / gpu.uuid.replace("/", "_")


def _release(leases: Sequence[GpuLease]) -> None:
    for lease in leases:
        lease.release()


def _too_few(candidates: int, count: int, held: list[str]) -> str:
    wanted = "a GPU is" if count == 1 else f"{count} GPUs are"
    usable = "none" if candidates == 0 else str(candidates)
    return "; ".join(
        [f"{wanted} needed, and of {usable} that this study may use, {candidates - len(held)} are free", *held]
    )


def _ourselves(study: str) -> LeaseHolder:
    me = own_identity()
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number without a name
        user = f"uid {os.getuid()}"
    return LeaseHolder(user=user, study=study, host=me.host, boot_id=me.boot_id, pid=me.pid, start_ticks=me.start_ticks)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir()
    except FileExistsError:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise NotADirectoryError(None, "something else than a folder is in its place") from None
    else:
        folder.chmod(0o1777)  # not through mkdir, which the umask would cut


@contextlib.contextmanager
def _picking(folder: Path) -> Iterator[None]:
    deadline = time.monotonic() + _PICK_LIMIT_S
    while (fd := _lock(folder / _PICKING)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(None, f"another process has been picking a GPU for {_PICK_LIMIT_S:.0f} s")
        time.sleep(_PICK_POLL_S)
    try:
        yield
    finally:
        os.close(fd)


def _lock(path: Path) -> int | None:
    """An open file with the exclusive lock on it; None when another process has it."""
    while True:
        fd = _open(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except FileNotFoundError:
            pass  # someone cleaned up between open and lock: what we locked is no longer the file of that name
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return None
            raise
        os.close(fd)


def _open(path: Path) -> int:
    """Open the file for reading and writing, made for all users where it is missing; never through a link.

    Without `O_CREAT` first: in a sticky folder the kernel refuses it for another user's file
    (sysctl `fs.protected_regular`).
    """
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            _create(path)


def _create(path: Path) -> None:
    """Make the empty file appear with its final mode, in one step."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o666)  # any user may come next, and writes its own name
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(fd)
        draft.unlink()


def _holder_words(path: Path) -> str:
    unknown = "a process that does not say who it is"
    try:
        with path.open("rb") as file:
            holder = LeaseHolder.model_validate_json(file.read(_CONTENT_LIMIT_BYTES))
    except (OSError, ValidationError):
        return unknown
    return holder.words if holder.lives else unknown


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
