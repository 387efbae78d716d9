"""The command line inside the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drill import SPEED, write_space
from tests.integration.cli.inside import DriverInside


@pytest.fixture
def inside(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[DriverInside]:
    """As `driver`, without a process for each command."""
    folder = tmp_path / "work"
    folder.mkdir()
    write_space(folder)
    with_mark = DriverInside(folder, SPEED, captured=capfd)
    yield with_mark
    with_mark.close()
