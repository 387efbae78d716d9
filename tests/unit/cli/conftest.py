from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from optimizer.cli.main import app


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command line in this process; `stdout`, `stderr` and `exit_code` are as a shell sees them."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*words: str) -> Result:
        monkeypatch.setattr("sys.argv", ["/usr/bin/vllm-autotune", *words])
        return CliRunner().invoke(app, list(words), prog_name="vllm-autotune")

    return call
