"""Figures of the simulated engine are never told without saying so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optimizer.report.closing import print_closing
from optimizer.report.notes import study_note
from optimizer.report.progress import PlainProgress
from optimizer.report.simulation import SIMULATED


@pytest.mark.parametrize(("kind", "said"), [("simulated", True), ("vllm", False)])
def test_start_end_and_note_of_a_simulated_study_say_so(sample, console, make_closing, printed, kind, said):
    study = replace(sample.study, config={"engine": {"kind": kind}})
    assert (SIMULATED in study_note(study, sample.trials)) is said
    PlainProgress(console).study_opened(study, [], total_trials=3)
    print_closing(console, make_closing(study, sample.trials))
    assert " ".join(printed(console).split()).count(SIMULATED) == (2 if said else 0)
