"""docs/architecture.md tells the truth: the state machine it draws, and the files it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from optimizer.core.trial import TRANSITIONS, TrialState


@pytest.fixture(scope="module")
def page(project_root: Path) -> str:
    return (project_root / "docs" / "architecture.md").read_text()


@pytest.fixture(scope="module")
def arrows(page: str) -> set[tuple[str, str]]:
    diagrams = re.findall(r"```mermaid\s+stateDiagram-v2\n(.*?)```", page, flags=re.DOTALL)
    assert len(diagrams) == 1
    return set(re.findall(r"^\s*(\S+) --> ([^\s:]+)", diagrams[0], flags=re.MULTILINE))


def test_drawn_transitions_are_those_of_the_code(arrows):
    drawn = {(a, b) for a, b in arrows if "[*]" not in (a, b)}
    assert drawn == {(a.value, b.value) for a, following in TRANSITIONS.items() for b in following}


def test_a_trial_starts_running_and_ends_in_a_final_state(arrows):
    assert {b for a, b in arrows if a == "[*]"} == {TrialState.RUNNING.value}
    assert {a for a, b in arrows if b == "[*]"} == {state.value for state in TrialState if state.is_final}


def test_every_file_it_names_exists(page, project_root):
    named = set(re.findall(r"`((?:optimizer|search_spaces|objectives|storage)/[\w./-]*)`", page))
    named |= {f"docs/{link}" for link in re.findall(r"\]\((adr/[^)]+)\)", page)}
    assert len(named) > 20
    assert {name for name in named if not (project_root / name).exists()} == set()
