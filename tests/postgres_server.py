"""A PostgreSQL server of our own for the tests: a fresh cluster in a temporary folder, on a Unix socket alone."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

URL_VARIABLE = "AUTOTUNE_TEST_POSTGRES_URL"
"""Names a server to use instead; the suites make schemas of their own in its database and drop them again."""
_USER = "postgres"
_LIMIT_S = 120.0


def postgres_programs() -> Path | None:
    """Folder that holds initdb and pg_ctl, of the newest version that is installed; None without a server."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return versions[-1].parent if versions else None


def postgres_is_there() -> bool:
    """Whether the tests can have a server."""
    return URL_VARIABLE in os.environ or postgres_programs() is not None


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """URL of an empty database, for as long as the context lasts."""
    if URL_VARIABLE in os.environ:
        yield os.environ[URL_VARIABLE]
        return
    programs = postgres_programs()
    if programs is None:
        raise RuntimeError("there is no PostgreSQL on this machine")
    # Not below pytest's folder: a Unix socket's path has 107 bytes at the most, and another user must reach it.
    folder = Path(tempfile.mkdtemp(prefix="autotune-pg-"))
    try:
        _owned_by_server_user(folder)
        _run(programs / "initdb", "-D", str(folder / "data"), "-U", _USER, "-A", "trust", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        waiting = ("-w", "-t", "100", "-l", str(folder / "log"))
        _run(programs / "pg_ctl", "-D", str(folder / "data"), "-o", options, *waiting, "start")
        try:
            yield f"postgresql://{_USER}@/postgres?host={quote(str(folder), safe='')}"
        finally:
            _run(programs / "pg_ctl", "-D", str(folder / "data"), "-m", "immediate", "-w", "stop")
    finally:
        # The server removes files of its own for a moment after it has let go of its lock.
        shutil.rmtree(folder, ignore_errors=True)


def _owned_by_server_user(folder: Path) -> None:
    """PostgreSQL refuses to run as root: its own user gets the folder then."""
    if os.geteuid() == 0:
        user = pwd.getpwnam(_USER)
        os.chown(folder, user.pw_uid, user.pw_gid)


def _run(program: Path, *arguments: str) -> None:
    as_user = {"user": _USER, "group": pwd.getpwnam(_USER).pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        [str(program), *arguments],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if program.name == "initdb" else subprocess.DEVNULL,
        stderr=subprocess.PIPE if program.name == "initdb" else subprocess.DEVNULL,
        timeout=_LIMIT_S,
        check=False,
        **as_user,
    )
    if done.returncode != 0:
        said = (done.stderr or b"").decode(errors="replace")
        raise RuntimeError(f"{program.name} {' '.join(arguments)} ended with {done.returncode}: {said}")
