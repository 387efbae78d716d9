"""`confirm` from the command line: its exit codes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from optimizer.app.confirm import ConfirmOutcome, ConfirmRequest
from optimizer.core.confirmation import Arm, arm_of, confirmation_number
from optimizer.core.errors import Interrupted
from optimizer.core.trial import TrialRole
from optimizer.objectives.confirmation import judge_confirmation


@pytest.fixture
def confirmed_as(monkeypatch, sample, tmp_path):
    """Puts runs with the given figures in place of real ones."""
    requests: list[ConfirmRequest] = []

    def install(winner: list[float]):
        figures = {Arm.BASELINE: iter([400.0, 404.0, 396.0]), Arm.WINNER: iter(winner)}
        of = {Arm.BASELINE: sample.trials[0], Arm.WINNER: sample.trials[2]}
        trials = list(sample.trials)
        for run in range(6):
            arm = arm_of(run)
            score = replace(of[arm].score, value=next(figures[arm]))
            trials.append(replace(of[arm], number=confirmation_number(2, run), role=TrialRole.CONFIRM, score=score))

        def confirm(request, observer):
            requests.append(request)
            found = judge_confirmation(trials, 2, maximise=True)
            return ConfirmOutcome(sample.study, trials, trials[2], found, "sqlite", tmp_path)

        monkeypatch.setattr("optimizer.app.confirm.confirm", confirm)
        return requests

    return install


@pytest.mark.parametrize(
    ("winner", "code", "outcome"),
    [
        ([520.0, 525.0, 515.0], 0, "confirmed"),
        ([300.0, 303.0, 297.0], 3, "not confirmed"),
        ([400.0, 450.0, 380.0], 3, "undecided"),
    ],
)
def test_the_exit_code_tells_whether_it_is_confirmed(invoke, confirmed_as, winner, code, outcome):
    confirmed_as(winner)
    result = invoke("confirm", "--study", "tiny-cpu")
    assert result.exit_code == code
    assert f"{outcome}: " in result.stdout
    shown = invoke("confirm", "--study", "tiny-cpu", "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["outcome"]) == (code, outcome)


def test_options_reach_the_use_case(invoke, confirmed_as):
    requests = confirmed_as([520.0, 525.0, 515.0])
    invoke("confirm", "--study", "s", "--storage", "x.db", "--repeats", "5", "--engine-python", "/p", "--port-range",
           "20000-20100")  # fmt: skip
    assert requests == [ConfirmRequest("s", "x.db", 5, "/p", (20000, 20100))]


def test_an_interruption_says_how_to_go_on(invoke, monkeypatch):
    def confirm(request, observer):
        raise Interrupted("stopped by SIGINT; the record is complete and no engine is left")

    monkeypatch.setattr("optimizer.app.confirm.confirm", confirm)
    result = invoke("confirm", "--study", "s")
    assert result.exit_code == 130
    assert "go on with: vllm-autotune confirm --study s" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--repeats", "2"], 2, "--repeats 2"),
        (["--repeats", "51"], 2, "--repeats 51"),
        (["--study", "none-such"], 2, "none-such"),
        ([], 2, "its recorded configuration cannot be used again"),
    ],
)
def test_what_cannot_be_confirmed_starts_nothing(invoke, history, words, code, told):
    result = invoke("confirm", "--storage", history, *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert told in result.stderr


def test_a_study_without_a_winner_ends_with_three(invoke, infeasible_history):
    result = invoke("confirm", "--storage", infeasible_history)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no feasible trial" in result.stderr
