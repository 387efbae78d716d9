"""docs/lint-rules.md lists the rules of the code, word by word."""

from __future__ import annotations

import re
from pathlib import Path

from optimizer.config.lint import RULES


def test_the_table_is_that_of_the_code(project_root: Path) -> None:
    page = (project_root / "docs" / "lint-rules.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `.*\|$", page, flags=re.MULTILINE)
    assert rows == [
        f"| `{rule.name}` | {rule.severity} | {rule.means} | {rule.why} | {rule.remedy} |" for rule in RULES
    ]
