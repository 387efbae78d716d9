from __future__ import annotations

import json

import pytest

from optimizer import __version__


def test_status_lists_studies(invoke, history_of_two):
    result = invoke("status", "--storage", history_of_two)
    assert result.exit_code == 0
    assert "tiny-cpu" in result.stdout
    assert "other" in result.stdout


def test_status_as_json(invoke, history_of_two):
    listed = json.loads(invoke("status", "--json", "--storage", history_of_two).stdout)
    assert listed["studies"] == [
        {"study": "tiny-cpu", "trials": 8, "best": 2},
        {"study": "other", "trials": 8, "best": 2},
    ]
    study = json.loads(invoke("status", "--study", "other", "--json", "--storage", history_of_two).stdout)
    assert (study["study"], study["best"], len(study["trials"])) == ("other", 2, 8)


def test_status_of_one_study(invoke, history):
    result = invoke("status", "--study", "tiny-cpu", "--storage", history)
    assert "* best: #2" in result.stdout
    assert "kv cache too small" in result.stdout, "a pipe is wide enough for the remarks"
    assert result.stderr == ""


def test_show(invoke, history):
    assert "trial #4 of study tiny-cpu" in invoke("show", "4", "--storage", history).stdout
    detail = json.loads(invoke("show", "4", "--json", "--storage", history).stdout)
    assert detail["failure"]["kind"] == "kv_cache_too_small"
    assert detail["study"] == "tiny-cpu"


@pytest.mark.parametrize("form", ["flags", "command", "json"])
def test_export(invoke, history, form):
    result = invoke("export", "--format", form, "--storage", history)
    assert result.exit_code == 0
    assert result.stderr.startswith("note: trial #2 is not confirmed on held-out traffic (one run measured #2)")
    assert "max-num-seqs" in result.stdout
    assert "planted" not in result.stdout


def test_export_of_an_infeasible_trial_warns_beside_the_result(invoke, history):
    result = invoke("export", "--trial", "3", "--storage", history)
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: trial #3 is infeasible")
    assert "warning" not in result.stdout


def test_export_of_nothing_feasible_ends_with_three(invoke, infeasible_history):
    result = invoke("export", "--storage", infeasible_history)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("error: study 'tiny-cpu' has no feasible trial")
    assert "\nhint: " in result.stderr


def test_spaces(invoke):
    assert "tiny-cpu" in invoke("spaces").stdout
    assert "max-num-seqs" in invoke("spaces", "tiny-cpu").stdout
    assert {space["name"] for space in json.loads(invoke("spaces", "--json").stdout)["spaces"]} >= {
        "tiny-cpu",
        "qwen13b",
    }
    assert json.loads(invoke("spaces", "tiny-cpu", "--json").stdout)["name"] == "tiny-cpu"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["spaces", "nosuch"], "nosuch"),
        (["show", "99"], "has no trial 99"),
        (["status", "--study", "nosuch"], "--study nosuch"),
        (["export", "--trial", "4"], "has no measurement"),
        (["export", "--format", "xml"], "xml"),
        (["show", "minus-one"], "TRIAL"),
        (["nosuch"], "nosuch"),
    ],
)
def test_wrong_input_ends_with_two_and_one_message(invoke, history, words, told):
    stored = [] if words[0] in ("spaces", "nosuch") else ["--storage", history]
    result = invoke(*words, *stored)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_a_missing_history_is_wrong_input(invoke, tmp_path):
    result = invoke("status", "--storage", str(tmp_path / "none.db"))
    assert result.exit_code == 2
    assert "none.db" in result.stderr
    assert "hint: " in result.stderr


def test_a_password_in_a_wrong_url_is_not_repeated(invoke):
    result = invoke("status", "--storage", "mysql://ann:pl4nted@db/tuning")
    assert result.exit_code == 2
    assert "pl4nted" not in result.stderr


def test_version_and_help(invoke):
    assert invoke("--version").stdout == f"vllm-autotune {__version__}\n"
    text = invoke("--help").stdout
    assert all(command in text for command in ("run", "status", "show", "export", "spaces", "dashboard"))
    for command in ("run", "status", "show", "export", "spaces", "dashboard"):
        assert invoke(command, "--help").exit_code == 0


def test_the_dashboard_says_where_it_is_and_ends_well_on_ctrl_c(invoke, history, monkeypatch):
    def interrupt(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("optimizer.app.dashboard.DashboardServer.serve_forever", interrupt)
    result = invoke("dashboard", "--storage", history, "--port", "0")
    assert result.exit_code == 0
    assert "dashboard at http://127.0.0.1:" in result.stderr
