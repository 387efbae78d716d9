"""The record of a soak: how it was run, on what, one line a cycle, and what it came to."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

FOLDER_VARIABLE = "SOAK_REPORT"
"""Names the folder for the record; without it, it is only printed."""


class Journal:
    """Prints each line as it comes, and keeps the record in a file.

    Args:
        name: Of the file, without its ending.
        packages: Whose versions belong into it.
        facts: Further lines for the head.
    """

    def __init__(self, name: str, *, packages: Sequence[str], facts: Sequence[str] = ()) -> None:
        folder = os.environ.get(FOLDER_VARIABLE)
        self._file = None if folder is None else Path(folder) / f"{name}.txt"
        self._begun_s = time.monotonic()
        self._lines: list[str] = []
        versions = ", ".join(f"{package} {metadata.version(package)}" for package in packages)
        memory_gib = psutil.virtual_memory().total / 2**30
        for line in (
            f"command: {os.environ.get('SOAK_COMMAND') or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}",
            f"begun: {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
            f"versions: Python {platform.python_version()}, {versions}, Linux {platform.release()}",
            f"hardware: {_cpu_model()}, {os.cpu_count()} cores, {memory_gib:.1f} GiB",
            *facts,
            "",
        ):
            self.say(line)

    def say(self, line: str) -> None:
        """Adds a line; the file is whole after each, so that a soak that is cut off leaves what it saw."""
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        self._lines.append(line)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text("\n".join(self._lines) + "\n", encoding="utf-8")

    def close(self, *summary: str) -> None:
        """Adds what it came to."""
        for line in ("", *summary, f"took {time.monotonic() - self._begun_s:.0f} s"):
            self.say(line)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
