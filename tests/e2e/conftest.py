"""A folder to drive commands in, for whole tests on live engines and in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.driving import Driver


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Runs commands in one folder for the whole module."""
    with_mark = Driver(tmp_path_factory.mktemp("e2e"))
    yield with_mark
    with_mark.close()
