"""Commands in an empty folder, without a study around them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drill import SPEED, write_space
from tests.driving import Driver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """Runs commands in a folder that holds nothing but `space.yaml`."""
    folder = tmp_path / "work"
    folder.mkdir()
    write_space(folder)
    with_mark = Driver(folder, SPEED)
    yield with_mark
    with_mark.close()
