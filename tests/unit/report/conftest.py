from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from optimizer.core.recommendation import Recommendation
from optimizer.core.record import StudyRecord, TrialRecord
from optimizer.core.study_end import StudyEnd
from optimizer.report.closing import Closing
from optimizer.report.commands import StudyCommands


@pytest.fixture(params=[60, 80, 120, 200], ids="{0} columns".format)
def console(request: pytest.FixtureRequest) -> Console:
    """A console of each usual width that writes into memory; `console.file.getvalue()` is what it printed."""
    return Console(file=io.StringIO(), width=request.param, highlight=False, markup=False)


@pytest.fixture
def make_closing(tmp_path: Path) -> Callable[..., Closing]:
    def make(
        study: StudyRecord,
        trials: list[TrialRecord],
        *,
        ended: StudyEnd = StudyEnd.TRIALS,
        recommendation: Recommendation | None = None,
    ) -> Closing:
        commands = StudyCommands("vllm-autotune", study.name, None, "vllm-autotune run --space tiny-cpu")
        return Closing(study, trials, 24, ended, "postgresql://ann:***@db/tuning", tmp_path, commands, recommendation)

    return make


@pytest.fixture
def printed() -> Callable[[Console], str]:
    def read(console: Console) -> str:
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    return read
