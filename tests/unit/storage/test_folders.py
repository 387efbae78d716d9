from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.errors import InputError
from optimizer.storage import attempt_folder


def test_an_attempts_folder_is_named_after_trial_and_attempt():
    assert attempt_folder(Path("/d"), "tiny-cpu", 3, 1) == Path("/d/tiny-cpu/trial-0003/attempt-1")


@given(st.text())
def test_no_study_name_leaves_the_base_folder(study):
    base = Path("/data/autotune")
    try:
        folder = attempt_folder(base, study, 0, 1)
    except InputError:
        return
    assert folder.parts[: len(base.parts)] == base.parts
    assert len(folder.parts) == len(base.parts) + 3
    assert ".." not in folder.parts


@pytest.mark.parametrize("study", ["qwen13b", "tiny-cpu", "Run_2026.03", "größe"])
def test_ordinary_names_are_taken(study):
    assert attempt_folder(Path("/d"), study, 0, 1).parts[2] == study
