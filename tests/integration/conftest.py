"""What every test of the command line on the simulated engine starts from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drill import SPEED, write_space
from tests.driving import Driver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """Runs commands in an empty folder that holds `space.yaml`."""
    folder = tmp_path / "work"
    folder.mkdir()
    write_space(folder)
    with_mark = Driver(folder, SPEED)
    yield with_mark
    with_mark.close()
