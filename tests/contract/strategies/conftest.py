"""One study for every strategy there is; a new one joins by its name in the catalogue."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimizer.storage import StudyStore, open_store
from optimizer.tuning.strategies import NAMES
from tests.contract.strategies.studies import MadeUpStudy


@pytest.fixture(params=NAMES, scope="module")
def strategy(request: pytest.FixtureRequest) -> str:
    """The name of a strategy."""
    return str(request.param)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with all tables and nothing in them."""
    file = tmp_path_factory.mktemp("empty") / "studies.db"
    with open_store(str(file)) as store, MadeUpStudy("random", store=store).search():
        pass
    return file


@pytest.fixture
def stores(empty_database: Path, tmp_path: Path) -> Iterator[Callable[[], StudyStore]]:
    """Gives a new empty history at each call."""
    opened: list[StudyStore] = []

    def make() -> StudyStore:
        file = tmp_path / f"{len(opened)}.db"
        shutil.copyfile(empty_database, file)
        opened.append(open_store(str(file)))
        return opened[-1]

    yield make
    for store in opened:
        store.close()
