from __future__ import annotations

import json
import shlex

import pytest

from optimizer.app.export import ExportFormat, export_setting
from optimizer.core.errors import InputError, NothingFeasible


def test_the_best_is_exported_without_a_warning(history):
    exported = export_setting(history, None, ExportFormat.FLAGS, None)
    assert exported.warning is None
    assert exported.note == ("trial #2 is not confirmed on held-out traffic (one run measured #2): `confirm` does that")
    assert shlex.split(exported.text)[:4] == ["--block-size", "16", "--max-model-len", "512"]
    assert "\n" not in exported.text


def test_every_form_tells_the_same_setting(history):
    command = shlex.split(export_setting(history, None, ExportFormat.COMMAND, None).text.replace("\\\n", " "))
    data = json.loads(export_setting(history, None, ExportFormat.JSON, None).text)
    flags = shlex.split(export_setting(history, None, ExportFormat.FLAGS, None).text)
    assert command[1:] == data["argv"]
    assert set(flags) <= set(command)
    assert data["trial"] == 2
    assert data["confirmation"] is None


def test_an_infeasible_trial_is_exported_with_a_warning(history):
    exported = export_setting(history, None, ExportFormat.FLAGS, 3)
    assert exported.warning == "trial #3 is infeasible: it was not shown to meet the limits"
    assert exported.note is None


def test_the_baseline_has_no_gain_to_confirm(history):
    assert export_setting(history, None, ExportFormat.FLAGS, 0).note is None


def test_a_trial_that_was_not_measured_is_not_exported(history, infeasible_history):
    with pytest.raises(InputError, match="has no measurement"):
        export_setting(history, None, ExportFormat.FLAGS, 4)
    with pytest.raises(NothingFeasible):
        export_setting(infeasible_history, None, ExportFormat.FLAGS, None)
