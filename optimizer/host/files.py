"""Files that are whole or absent, and the lock that keeps two optimizers off one study."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from optimizer.core.engine_config import JsonValue
from optimizer.core.errors import HostError

GO_ON_HINT = "free some space, then run the same command again: it goes on where it stopped"


def make_folder(path: Path, *, hint: str = "choose another with --storage") -> Path:
    """Create a folder with its parents.

    Args:
        path: The folder.
        hint: What to do when that is not possible.

    Raises:
        HostError: It cannot be created or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(f"cannot create folder {path}: {error.strerror}", hint=hint) from error
    return path


def keep_file(path: Path, write: Callable[[Path], object], *, hint: str = GO_ON_HINT) -> None:
    """Write a file that must not be missed.

    Args:
        path: The file.
        write: Writes it, given its path.
        hint: What to do when that is not possible.

    Raises:
        HostError: The disk is full, or the folder is gone or not ours to write.
    """
    try:
        write(path)
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}", hint=hint) from error


def write_json(path: Path, value: JsonValue) -> None:
    """Write a JSON file in one step: a reader sees the old content or the new one, never a part."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(path)


@contextmanager
def exclusive_lock(path: Path, *, what: str) -> Iterator[None]:
    """Hold an advisory lock for as long as the block runs. The kernel frees it when the process dies, however it dies.

    Raises:
        HostError: Another process holds it, and the message names its pid; or the file cannot be written.
    """
    try:
        file = path.open("a+", encoding="ascii")
    except OSError as error:
        raise HostError(
            f"cannot write {path}: {error.strerror}", hint="choose another folder with --storage"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise HostError(
                f"{what} is being run by another process (pid {holder})",
                hint="wait for it, or stop it with Ctrl-C first",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
