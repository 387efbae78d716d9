from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from optimizer.report.commands import StudyCommands
from optimizer.report.notes import note_of, study_note
from optimizer.report.status_view import print_studies, print_study
from optimizer.report.trial_view import print_trial


def trial_rows(text):
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if re.match(r"^\d+\*? ", line)]


def test_a_study_s_trials_have_one_row_each(sample, console, printed):
    print_study(console, sample.study, sample.trials)
    rows = trial_rows(printed(console))
    assert [row[0].split()[0] for row in rows] == ["0", "1", "2*", "3", "4", "5", "6", "7"]
    assert " ".join(rows[2]).startswith("2* search feasible 512.3 +28 % 712 ms")
    assert "* best: #2" in printed(console)


def test_no_line_of_the_trial_table_is_too_wide(sample, console, printed):
    print_study(console, sample.study, sample.trials)
    assert max(len(line.rstrip()) for line in printed(console).splitlines()) <= console.width


def test_a_wide_console_shows_what_changed_and_why_it_failed(sample, printed):
    console = Console(file=io.StringIO(), width=200)
    print_study(console, sample.study, sample.trials)
    text = printed(console)
    assert "--no-enable-prefix-caching --max-num-seqs 256" in text
    assert "kv cache too small while launching" in text


def test_studies_are_listed_with_their_best(sample, infeasible_sample, console, printed):
    print_studies(console, [(sample.study, sample.trials), (infeasible_sample.study, infeasible_sample.trials)])
    lines = [line.split() for line in printed(console).splitlines()]
    assert lines[2] == ["tiny-cpu", "8", "#2", "512.3", "tok/s", "+28", "%"]
    assert lines[3] == ["tiny-cpu", "4", "-", "-", "-"]


def test_an_empty_history_says_how_to_fill_it(console, printed):
    print_studies(console, [])
    assert "run --space tiny-cpu" in printed(console)


def test_a_failed_trial_is_shown_with_evidence_and_every_attempt(sample, console, printed):
    print_trial(console, sample.trials[4], sample.trials[0])
    text = printed(console)
    assert "trial #4 of study tiny-cpu: search, failed" in text
    assert "  vs baseline: --max-model-len 4096\n" in text
    assert "  | ValueError: To serve at least one request\n" in text
    assert "  | with [brackets] and HF_TOKEN=***\n" in text
    assert "attempt 1" in text
    assert "attempt 2" in text
    assert "  launching: 20 s\n" in text
    assert "  folder: /records/tiny-cpu/2\n" in text
    assert "  HF_TOKEN=***\n" in text
    assert "hf_planted" not in text


def test_a_measured_trial_is_shown_with_units_and_intervals(sample, console, printed):
    print_trial(console, sample.trials[2], sample.trials[0])
    text = " ".join(printed(console).split())
    assert "feasible: 512.3 tok/s (+28 %), against the baseline; more is better" in text
    assert "P99 E2E 800 ms 712 ms 692 ms to unbounded - feasible" in text or console.width < 80
    assert "P99 TTFT 178 ms p99_ttft_ms" in text
    assert "P99 ITL - p99_itl_ms" in text


@pytest.mark.parametrize("number", range(8))
def test_every_kind_of_trial_can_be_shown_and_noted(sample, console, printed, number):
    print_trial(console, sample.trials[number], sample.trials[0])
    trial = sample.trials[number]
    assert f"trial #{number}" in printed(console)
    assert f"**{trial.role}, {trial.state}**" in note_of(trial)
    assert "hf_planted" not in note_of(trial)


def test_a_note_holds_limits_metrics_and_the_log_s_place(sample):
    note = note_of(sample.trials[2])
    assert "- P99 E2E 712 ms <= 800 ms (95 % interval: 692 ms to unbounded)" in note
    assert "| P99 TTFT | 178 ms |" in note
    assert "launching 20 s, warming up 4.0 s, measuring 15 s, stopping 1.0 s" in note
    assert "`/records/tiny-cpu/1`" in note


def test_no_line_of_evidence_can_leave_its_block(sample):
    failed = sample.trials[4]
    hostile = replace(failed, failure=replace(failed.failure, evidence=("```", "# not a heading")))
    note = note_of(hostile)
    assert "````\n```\n# not a heading\n````" in note


def test_the_study_s_note_names_its_best_and_the_flags(sample, infeasible_sample):
    note = study_note(sample.study, sample.trials)
    assert "**#2**, output tok/s 512.3, +28 % vs baseline" in note
    assert "--max-num-seqs 64" in note
    assert all(len(line) <= 100 for line in note.splitlines() if line.startswith("--"))
    assert "vllm 0.32.0" in note
    assert "No trial is feasible yet." in study_note(infeasible_sample.study, infeasible_sample.trials)


def test_commands_to_copy_name_the_storage_that_was_given():
    commands = StudyCommands("python -m optimizer", "my-study", "sqlite:////a b/studies.db")
    assert commands.show(3) == "python -m optimizer show 3 --study my-study --storage 'sqlite:////a b/studies.db'"


def test_a_note_s_evidence_does_not_make_its_page_wide(sample):
    failed = next(trial for trial in sample.trials if trial.failure is not None)
    assert failed.failure is not None
    long = replace(failed, failure=replace(failed.failure, evidence=("evidence " * 100,)))
    lines = [line for line in note_of(long).splitlines() if "evidence" in line]
    assert max(map(len, lines)) <= 100
    assert sum(line.count("evidence") for line in lines) == 100
