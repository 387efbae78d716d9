"""Studies on the simulated engine that take seconds, driven through the command line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.drill import RUN, SPEED, write_space
from tests.driving import Driver, Finished


@dataclass(frozen=True)
class FinishedStudy:
    """A study that ran to its end without trouble. Its folder is shared: read it, or work on a copy."""

    folder: Path
    ran: Finished


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> FinishedStudy:
    """The study that others are compared with."""
    folder = tmp_path_factory.mktemp("unbroken")
    write_space(folder)
    driver = Driver(folder, SPEED)
    try:
        return FinishedStudy(folder, driver.run(*RUN))
    finally:
        driver.close()


@pytest.fixture
def driver_on_copy(tmp_path: Path, unbroken: FinishedStudy) -> Iterator[Driver]:
    """Runs commands in a copy of the finished study."""
    folder = tmp_path / "work"
    shutil.copytree(unbroken.folder, folder)
    with_mark = Driver(folder, SPEED)
    yield with_mark
    with_mark.close()
