from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from optimizer.app.request import RunRequest
from optimizer.app.run_study import StudyOutcome
from optimizer.cli.run_options import ObjectiveOption
from optimizer.core.errors import HostError, Interrupted
from optimizer.core.study_end import StudyEnd
from optimizer.core.trial import TrialRole
from optimizer.objectives import OBJECTIVES


@pytest.fixture
def run_with(monkeypatch, tmp_path):
    """Puts a study in place of `run_study`: it plays the trials to the observer, then ends as told."""
    requests: list[RunRequest] = []

    def install(sample, *, ended=StudyEnd.TRIALS, error=None):
        def run_study(request, observer):
            requests.append(request)
            observer.study_opened(sample.study, [], total_trials=8)
            for trial in sample.trials[:5]:
                observer.trial_started(trial, attempt=1)
                observer.trial_finished(trial)
            if error is not None:
                raise error
            return StudyOutcome(sample.study, sample.trials, ended, 8, "postgresql://ann:***@db/tuning", tmp_path)

        monkeypatch.setattr("optimizer.app.run_study.run_study", run_study)
        return requests

    return install


def test_options_reach_the_study(invoke, run_with, sample):
    requests = run_with(sample)
    result = invoke(
        "run", "--space", "tiny-cpu", "--study", "s", "--storage", "x.db", "--trials", "12", "--time-budget", "1h30m",
        "--baseline", "vllm serve m", "--slo", "p99_e2e_ms=800", "--slo", "p99_ttft<=1.0x", "--set", "block-size=16",
        "--model", "m", "--engine", "simulated", "--engine-python", "/p", "--port-range", "20000-20100", "--seed", "7",
        "--objective", "throughput", "--workload", "w.yaml", "--sampler", "random", "--stop-below-gain", "1%",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert requests == [
        RunRequest(
            space="tiny-cpu", study="s", storage="x.db", trials=12, time_budget_s=5400.0, baseline="vllm serve m",
            objective="throughput", slos=("p99_e2e_ms=800", "p99_ttft<=1.0x"), workload="w.yaml", model="m",
            set_flags=("block-size=16",), engine="simulated", engine_python="/p", port_range=(20000, 20100), seed=7,
            sampler="random", least_gain="1%",
        )
    ]  # fmt: skip


def test_the_help_names_every_objective():
    said = get_args(ObjectiveOption)[1].help
    assert [name for name, objective in OBJECTIVES.items() if objective.latency is None and name not in said] == []
    assert "p99_ttft" in said


def test_the_space_alone_is_enough(invoke, run_with, sample):
    requests = run_with(sample)
    assert invoke("run", "--space", "tiny-cpu").exit_code == 0
    assert requests == [RunRequest(space="tiny-cpu")]


def test_progress_goes_to_stderr_and_the_report_to_stdout(invoke, run_with, sample):
    run_with(sample)
    result = invoke("run", "--space", "tiny-cpu")
    assert "#2  feasible  512.3 tok/s (+28 %)" in result.stderr
    assert "#2  feasible" not in result.stdout
    assert "best #2" in result.stdout
    assert "vllm-autotune export --format command --study tiny-cpu\n" in result.stdout


def test_a_given_storage_is_in_the_commands_with_its_password_hidden(invoke, run_with, sample):
    run_with(sample)
    result = invoke("run", "--space", "tiny-cpu", "--storage", "postgresql://ann:pl4nted@db/tuning")
    assert "--storage 'postgresql://ann:***@db/tuning'" in result.stdout
    assert "pl4nted" not in result.stdout + result.stderr


def test_nothing_feasible_ends_with_three_after_the_report(invoke, run_with, infeasible_sample):
    run_with(infeasible_sample)
    result = invoke("run", "--space", "tiny-cpu")
    assert result.exit_code == 3
    assert "Nearest: #1" in result.stdout
    assert "error: no trial of study tiny-cpu meets its limits" in result.stderr


def test_a_spent_time_budget_ends_well_with_the_line_that_resumes(invoke, run_with, sample):
    run_with(sample, ended=StudyEnd.TIME_BUDGET)
    result = invoke("run", "--space", "tiny-cpu", "--time-budget", "90s")
    assert result.exit_code == 0
    assert "  vllm-autotune run --space tiny-cpu --time-budget 90s\n" in result.stdout


def test_a_spent_time_budget_with_nothing_feasible_ends_with_three_and_says_how_to_go_on(
    invoke, run_with, infeasible_sample
):
    run_with(infeasible_sample, ended=StudyEnd.TIME_BUDGET)
    result = invoke("run", "--space", "tiny-cpu", "--time-budget", "90s")
    assert result.exit_code == 3
    assert "  vllm-autotune run --space tiny-cpu --time-budget 90s\n" in result.stdout
    assert "error: no trial of study tiny-cpu meets its limits so far, and the time budget is used up" in result.stderr
    assert "hint: go on with: vllm-autotune run --space tiny-cpu --time-budget 90s" in result.stderr


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("stopped by SIGTERM")])
def test_an_interruption_ends_with_130_and_the_line_that_resumes(invoke, run_with, sample, error):
    run_with(sample, error=error)
    result = invoke("run", "--space", "tiny-cpu", "--slo", "p99_e2e<=1.0x")
    assert result.exit_code == 130
    assert result.stderr.endswith("hint: go on with: vllm-autotune run --space tiny-cpu --slo 'p99_e2e<=1.0x'\n")
    assert "stopped: " in result.stderr


def test_trouble_of_the_host_ends_with_four(invoke, run_with, sample):
    run_with(sample, error=HostError("vLLM is not installed", hint="pip install 'vllm-autotune[cpu]'"))
    result = invoke("run", "--space", "tiny-cpu")
    assert result.exit_code == 4
    assert result.stderr.endswith("error: vLLM is not installed\nhint: pip install 'vllm-autotune[cpu]'\n")


@pytest.mark.parametrize(
    "words", [["--time-budget", "soon"], ["--port-range", "9"], ["--trials", "x"], ["--seed", "-1"]]
)
def test_a_wrong_option_starts_nothing(invoke, run_with, sample, words):
    requests = run_with(sample)
    result = invoke("run", "--space", "tiny-cpu", *words)
    assert result.exit_code == 2
    assert words[0] in result.stderr
    assert requests == []


def test_run_needs_a_space(invoke):
    result = invoke("run")
    assert result.exit_code == 2
    assert "--space" in result.stderr


def test_a_dry_run_shows_the_plan_and_starts_nothing(invoke, run_with, sample, monkeypatch):
    from optimizer.app.plan import PlannedTrial, StudyPlan
    from optimizer.config.study_time import Span, StudyTime, TimePart

    each = Span(40.0, 50.0)
    plan = StudyPlan(
        space_name="tiny-cpu",
        study="tiny-cpu",
        model="tiny-kv",
        parameters=[("max-num-seqs", "2..128 (log)")],
        rules=["max-num-batched-tokens >= max-num-seqs"],
        workload="32 in flight, 128 prompt tokens",
        objective="throughput",
        slos=("p99_e2e<=1.0x",),
        sampler="tpe: Optuna's",
        trials=16,
        proposals=[PlannedTrial(0, TrialRole.BASELINE, {}, ("python", "-m", "server", "--api-key", "pl4nted"))],
        time=StudyTime(16, 0, each, each.times(16), (TimePart("window", each, each.times(16)),)),
        notes=("memory is 1.5 GiB",),
    )
    monkeypatch.setattr("optimizer.app.plan.plan_study", lambda request: plan)
    requests = run_with(sample)
    result = invoke("run", "--space", "tiny-cpu", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert requests == []
    assert "10 min 40 s to 13 min 20 s for 16 trials of 40 s to 50 s, the largest part: window" in result.stdout
    assert "max-num-seqs  2..128 (log)" in result.stdout
    assert "sampler    tpe: Optuna's" in result.stdout
    assert "trial #0 (baseline)" in result.stdout
    assert "pl4nted" not in result.stdout


def test_the_record_folder_is_told(invoke, run_with, sample, tmp_path):
    run_with(sample)
    assert str(Path(tmp_path)) in invoke("run", "--space", "tiny-cpu").stdout
