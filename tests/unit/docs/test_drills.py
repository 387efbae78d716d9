"""docs/drills.md names every fault, and what it says of an attempt's end is what the soak demands."""

from __future__ import annotations

import re

import pytest

from optimizer.core.failure import FailureKind
from optimizer.engine.simulated.command_line import parse_command_line
from optimizer.engine.simulated.fault_script import ScriptedFault
from optimizer.engine.simulated.faults import Fault
from tests.soak.plan import MEASURED, OUTCOMES


@pytest.fixture(scope="module")
def page(project_root):
    return (project_root / "docs" / "drills.md").read_text()


@pytest.fixture(scope="module")
def rows(page):
    """Fault to what the tuner makes of it."""
    found = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", page, flags=re.MULTILINE)
    return {fault: told for fault, _, told in found if fault in list(Fault)}


def test_every_fault_has_its_row(rows):
    assert set(rows) == set(Fault)


@pytest.mark.parametrize("fault", OUTCOMES)
def test_the_kind_of_failure_is_the_one_that_the_soak_sees(rows, fault):
    named = {kind for kind in FailureKind if f"`{kind}`" in rows[fault]}
    possible = OUTCOMES[fault][1]
    assert named <= possible
    assert bool(named) == (MEASURED not in possible)


def test_keys_and_variables_are_those_that_are_read(page, capsys):
    keys = set(re.findall(r"^\| `(\w+)` \| [^|]* \|$", page, flags=re.MULTILINE))
    assert keys == set(ScriptedFault.__slots__) - {"fault"}
    with pytest.raises(SystemExit):
        parse_command_line(["--help"])
    help_text = capsys.readouterr().out
    assert all(name in help_text for name in re.findall(r"`(AUTOTUNE_SIM_\w+)`", page))
