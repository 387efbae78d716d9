"""Studies on the simulated engine that take seconds, driven through the command line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.drill import RUN, SPEED, write_space
from tests.driving import Driver
from tests.integration.study.side_by_side import Drill, FinishedStudy, driver_of_its_own, two_at_a_time


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


@pytest.fixture(scope="module")
def drivers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Drill, Driver]:
    """For each of a module's `DRILLS` a folder with `space.yaml`, with its `ENVIRON` if it has one."""
    drills: tuple[Drill, ...] = request.module.DRILLS
    environ: dict[str, str] = getattr(request.module, "ENVIRON", {})
    made = {drill: driver_of_its_own(tmp_path_factory.mktemp("drill"), **environ) for drill in drills}
    for driver in made.values():
        write_space(driver.folder)
    return made


@pytest.fixture(scope="module")
def begun(drivers: dict[Drill, Driver]) -> Iterator[dict[Drill, Future[None]]]:
    """A module's drills, begun in their order."""
    with two_at_a_time(drivers) as drills:
        yield drills
