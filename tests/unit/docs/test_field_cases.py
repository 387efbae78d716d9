"""docs/field-cases.md names tests that exist."""

from __future__ import annotations

import re

import pytest


@pytest.fixture(scope="module")
def cells(project_root):
    """The last cell of every row of a table."""
    page = (project_root / "docs" / "field-cases.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "tests/" in line]
    assert len(rows) > 20
    return [row.rstrip("| ").rpartition(" | ")[2] for row in rows]


def test_every_test_it_names_exists(cells, project_root):
    missing = []
    for cell in cells:
        file = None
        for name in re.findall(r"`([^`]+)`", cell):
            path, _, test = name.rpartition("::")
            file = project_root / path if path else file
            assert file is not None, cell
            text = file.read_text()
            # Of a drill that runs beside others the name is the parameter's.
            functions = [word for word in re.split(r"[\[\]]", test) if word]
            if not all(re.search(rf"^(?:async )?def {word}\(", text, flags=re.MULTILINE) for word in functions):
                missing.append(name)
    assert missing == []


def test_every_row_names_one(cells):
    assert all("::test_" in cell for cell in cells)
