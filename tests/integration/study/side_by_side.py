"""Studies that have nothing to do with each other, run at the same time: each waits for its engine half of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.drill import SPEED
from tests.driving import Driver, Finished

AT_ONCE = 2
"""Studies; more would only take the processor from each other, and every limit on time would come nearer."""

T = TypeVar("T")


@dataclass(frozen=True)
class FinishedStudy:
    """A study that ran to its end without trouble. Its folder is shared: read it, or work on a copy."""

    folder: Path
    ran: Finished


def side_by_side(*studies: Callable[[], T]) -> list[T]:
    """What each comes to, in the order given; fails with the first that fails, once all have ended."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [done.result() for done in [pool.submit(study) for study in studies]]


Drill = Callable[[Driver], None]
"""A study in a folder of its own, with what is asserted of it."""


@contextmanager
def two_at_a_time(drills: Mapping[Drill, Driver]) -> Iterator[dict[Drill, Future[None]]]:
    """Begins all of them in their order; what each comes to can be waited for."""
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield {drill: pool.submit(drill, driver) for drill, driver in drills.items()}
    finally:
        for driver in drills.values():
            driver.close()


def driver_of_its_own(folder: Path, **environ: str) -> Driver:
    """A driver whose runs do not hear of the engines of others: no study beside it tidies up after this one."""
    return Driver(folder, {**SPEED, "AUTOTUNE_STATE_DIR": str(folder.with_name(f"{folder.name}-state")), **environ})


def run_at_once(driver: Driver, *commands: tuple[str, ...]) -> list[Finished]:
    """Commands of which none changes what another reads."""
    return [running.finish() for running in [driver.start(*words) for words in commands]]
