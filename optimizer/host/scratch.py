"""Temporary files and shared memory of an engine, which vLLM leaves behind however gently it is stopped.

Each launch of vLLM 0.32 leaves seven sockets and a rendezvous file in TMPDIR, and with workers two segments in
`/dev/shm`, because it kills its own resource tracker. A container often has 64 MiB of `/dev/shm`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from optimizer.core.errors import HostError
from optimizer.host.guard import SCRATCH_PREFIX

SCRATCH_HINT = "name a folder that can be written, and has a short path, in TMPDIR"
_LONGEST_SOCKET_NAME = 50
"""vLLM names its sockets by 36 characters; `multiprocessing` takes 26."""
_LONGEST_SOCKET_PATH = 107
"""Bytes of a unix socket's path on Linux, less the closing zero: `sockaddr_un` in unix(7)."""
_SHARED_MEMORY = "/dev/shm/psm_"  # noqa: S108 (a prefix that Python's `shared_memory` gives, not a file of ours)


def make_scratch(mark: str) -> Path | None:
    """A folder for temporary files, of this user alone; None where sockets in it would have too long a path.

    Raises:
        HostError: It cannot be created.
    """
    folder = Path(tempfile.gettempdir()) / f"{SCRATCH_PREFIX}{mark}"
    if len(os.fsencode(folder)) + _LONGEST_SOCKET_NAME > _LONGEST_SOCKET_PATH:
        return None
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise HostError(f"cannot create folder {folder}: {error.strerror}", hint=SCRATCH_HINT) from error
    return folder


def shared_memory_of(pids: Iterable[int]) -> set[Path]:
    """Segments of Python's `multiprocessing.shared_memory` that living processes have mapped."""
    found = set()
    for pid in pids:
        with suppress(OSError):  # it is gone, or another user's
            for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
                path = line[line.find("/") :]
                if path.startswith(_SHARED_MEMORY) and not path.endswith(" (deleted)"):
                    found.add(Path(path))
    return found


def remove_shared_memory(segments: Iterable[Path], *, since_s: float) -> None:
    """Remove segments of processes that are gone, but none that was there before they were launched.

    Args:
        segments: As `shared_memory_of` found them while the processes lived.
        since_s: When those were launched, in seconds since the epoch: an older segment is somebody else's.
    """
    for segment in segments:
        with suppress(FileNotFoundError, PermissionError):
            if segment.stat().st_ctime >= since_s:
                segment.unlink()
