"""The ledger: which guards were started on this host, so that a later run finds what an earlier one left behind.

One small JSON file for each guard, in a folder of the user's state: written when the guard starts, renewed when it
launches or has stopped an engine, removed once everything of it is seen to be gone. A file that stays belongs to a run
that lives, or to one that was killed.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from optimizer.core.errors import HostError
from optimizer.core.record import ProcessIdentity
from optimizer.host.files import keep_file, make_folder, write_json
from optimizer.host.guard import ProcessKey
from optimizer.host.processes import boot_id, is_alive

STATE_VARIABLE = "AUTOTUNE_STATE_DIR"
"""Names another folder than `$XDG_STATE_HOME/vllm-autotune` for what is kept from run to run on this host."""
_UNREADABLE = ".unreadable"


class LedgerEntry(BaseModel):
    """One guard, as its file tells of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = Field(1, description="Form of the file.")
    host: str = Field(description="Host name.")
    boot_id: str = Field(description="The kernel's id of the boot: processes of another boot are gone.")
    pid_namespace: str = Field(
        description="Kernel's name for the set of pids meant: containers have sets of their own."
    )
    mark: str = Field(pattern=r"^[0-9a-f]{8,64}$", description="Value of AUTOTUNE_GUARD in what the guard started.")
    owner: ProcessKey = Field(description="Pid and start ticks of the optimizer.")
    guard: ProcessKey = Field(description="Pid and start ticks of the guard.")
    leader: ProcessKey | None = Field(
        None, description="The engine's first process, whose pid is the session's id too."
    )
    trial: str | None = Field(None, description="Study, trial and attempt of that engine.")
    launched_at_s: float = Field(0.0, description="When that engine was launched, in seconds since the epoch.")
    scratch: str | None = Field(None, description="Folder for temporary files of guard and engines.")

    @property
    def owner_lives(self) -> bool:
        """Whether the optimizer that wrote it still runs."""
        return is_alive(ProcessIdentity(self.host, self.boot_id, *self.owner))


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What a look into the ledger found.

    Attributes:
        entries: Those of this host, boot and pid namespace.
        notes: Files that are no entries and what was done about them, for the person who watches.
    """

    entries: tuple[LedgerEntry, ...]
    notes: tuple[str, ...]


class EngineLedger:
    """The files of one user on one host.

    Args:
        folder: Exists and can be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, entry: LedgerEntry) -> None:
        """Keep the entry, in place of an earlier one of the same guard.

        Raises:
            HostError: The file cannot be written.
        """
        keep_file(self._path(entry.mark), lambda to: write_json(to, entry.model_dump(mode="json")), hint=_HINT)

    def remove(self, mark: str) -> None:
        """Forget a guard of which nothing is left."""
        self._path(mark).unlink(missing_ok=True)
        self._path(mark).with_suffix(".json.tmp").unlink(missing_ok=True)

    def view(self) -> LedgerView:
        """Read all entries. What is no entry is moved aside; entries of an earlier boot are removed.

        Files of other hosts and containers that share the folder are left alone: their pids say nothing here.
        """
        entries, notes = [], []
        for path in sorted(self.folder.glob("*.json")):
            try:
                entry = LedgerEntry.model_validate_json(path.read_bytes())
            except FileNotFoundError:  # another optimizer has just removed its own
                continue
            except (OSError, ValidationError) as error:
                notes.append(_set_aside(path, error))
                continue
            if entry.host != platform.node() or entry.pid_namespace != pid_namespace():
                continue
            if entry.boot_id != boot_id():
                self.remove(entry.mark)
                continue
            entries.append(entry)
        return LedgerView(tuple(entries), tuple(notes))

    def _path(self, mark: str) -> Path:
        return self.folder / f"{mark}.json"


_HINT = f"set {STATE_VARIABLE} to a folder that can be written"


def open_ledger() -> EngineLedger:
    """The ledger of this user.

    Raises:
        HostError: Its folder cannot be created or written.
    """
    folder = make_folder(_state_folder() / "engines", hint=_HINT)
    if not os.access(folder, os.W_OK):
        raise HostError(f"cannot write to folder {folder}", hint=_HINT)
    return EngineLedger(folder)


def pid_namespace() -> str:
    """The kernel's name for the set of pids this process lives in; empty where it does not tell."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _state_folder() -> Path:
    own = os.environ.get(STATE_VARIABLE)
    if own:
        return Path(own)
    base = os.environ.get("XDG_STATE_HOME", "")
    # The XDG Base Directory Specification wants a relative path ignored.
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "vllm-autotune"


def _set_aside(path: Path, error: OSError | ValidationError) -> str:
    why = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
    aside = path.with_suffix(_UNREADABLE)
    try:
        path.replace(aside)
    except OSError as refused:
        return f"{path} is no record of an engine ({why}) and cannot be moved aside ({refused.strerror})"
    return f"{path} is no record of an engine ({why}): moved to {aside.name}; an engine it stood for is not looked for"
