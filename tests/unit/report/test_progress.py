from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from optimizer.core.trial import Stage, TrialState
from optimizer.report.progress import LiveProgress, PlainProgress, make_progress
from optimizer.report.progress_state import StudyProgress

STAMP = re.compile(r"^\d\d:\d\d:\d\d ")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def plain_lines(console):
    lines = console.file.getvalue().splitlines()
    assert all(STAMP.match(line) for line in lines)
    return [STAMP.sub("", line) for line in lines]


def running(trial):
    """The record of a trial as it is when an attempt begins."""
    return replace(trial, state=TrialState.RUNNING, metrics={}, score=None, failure=None, attempts=())


def play_one_trial(progress, sample, clock, *, number=2):
    """Everything up to the middle of the measuring window of one trial."""
    progress.study_opened(sample.study, sample.trials[:number], total_trials=12)
    progress.trial_started(running(sample.trials[number]), attempt=1)
    for stage in (Stage.LAUNCHING, Stage.WARMING_UP, Stage.MEASURING):
        progress.stage_entered(number, stage)
    progress.load_progress(number, done_requests=31, elapsed_s=7.5, window_s=15.0)
    clock.now_s += 8.0


def test_plain_progress_tells_each_event_in_one_line(sample, clock, console):
    progress = PlainProgress(console, clock=clock)
    play_one_trial(progress, sample, clock)
    progress.trial_finished(sample.trials[2])
    progress.notice("two\nlines")
    draft = """'{"method": "ngram", "num_speculative_tokens": 4}'"""
    assert plain_lines(console) == [
        "study tiny-cpu goes on: 2 of 12 trials are done",
        f"trial #2 (search), 3 of 12: --max-num-seqs 64 --speculative-config {draft}",
        "trial #2: launching",
        "trial #2: warming up",
        "trial #2: measuring",
        "#2  feasible  512.3 tok/s (+28 %)  P99 E2E 712 ms <= 800 ms  in 40 s",
        "best so far: #2  512.3 tok/s (+28 %)  P99 E2E 712 ms <= 800 ms; 9 trials left, about 6 min 00 s",
        "two lines",
    ]


def test_a_new_study_says_how_much_is_to_come(sample, clock, console):
    PlainProgress(console, clock=clock).study_opened(sample.study, [], total_trials=12)
    assert plain_lines(console) == ["study tiny-cpu: 12 trials to run"]


def test_a_failed_trial_tells_why(sample, clock, console):
    progress = PlainProgress(console, clock=clock)
    failed = sample.trials[4]
    progress.study_opened(sample.study, sample.trials[:4], total_trials=5)
    progress.trial_started(running(failed), attempt=2)
    progress.attempt_failed(4, failed.failure, will_retry=True)
    progress.trial_finished(failed)
    why = "kv cache too small while launching: 4096 tokens of context need 128 MiB of KV cache and there are 64"
    assert plain_lines(console)[1:] == [
        "trial #4 (search), 5 of 5, attempt 2: --max-model-len 4096",
        f"trial #4: {why}; trying it again",
        f"#4  failed  {why}  in 12 s",
    ]


def test_before_anything_is_feasible_it_says_so(sample, clock, console):
    progress = PlainProgress(console, clock=clock)
    progress.study_opened(sample.study, [], total_trials=3)
    progress.trial_finished(sample.trials[3])
    assert plain_lines(console)[-1] == "best so far: none feasible yet; 2 trials left, about 1 min 20 s"


def test_the_live_region_shows_trial_stage_load_best_and_time_left(sample, clock, console):
    progress = LiveProgress(console, clock=clock)
    play_one_trial(progress, sample, clock)
    progress.close()
    screen = Console(file=io.StringIO(), width=console.width)
    screen.print(progress.render())
    text = " ".join(screen.file.getvalue().split())  # type: ignore[attr-defined]
    assert "trial #2 (search), 3 of 12" in text
    assert "--max-num-seqs 64" in text
    assert "measuring for 8.0 s" in text
    assert "7.50 of 15 s measured, 31 requests done" in text
    assert "best so far: #0 400 tok/s P99 E2E 700 ms <= 800 ms" in text
    assert "10 trials left, about 6 min 32 s" in text
    assert all(len(line) <= console.width for line in screen.file.getvalue().splitlines())  # type: ignore[attr-defined]


def test_both_displays_use_the_same_words_for_a_finished_trial(sample, clock):
    told = []
    for display in (PlainProgress, LiveProgress):
        console = Console(file=io.StringIO(), width=200)
        with display(console, clock=clock) as progress:
            progress.study_opened(sample.study, sample.trials[:2], total_trials=12)
            progress.trial_finished(sample.trials[2])
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        told.append(next(STAMP.sub("", line).strip() for line in lines if "#2  feasible" in line))
    assert told[0] == told[1]


def test_the_live_display_keeps_a_line_with_the_changes_of_each_finished_trial(sample, clock):
    console = Console(file=io.StringIO(), width=100)
    with LiveProgress(console, clock=clock) as progress:
        progress.study_opened(sample.study, sample.trials[:3], total_trials=12)
        progress.trial_finished(sample.trials[3])
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "#3  infeasible  600 tok/s (+50 %)  P99 E2E 1,200 ms > 800 ms  in 40 s" in text
    assert "    --no-enable-prefix-caching --max-num-seqs 256" in text


def test_events_before_the_study_is_open_are_harmless(sample, clock, console):
    for progress in (PlainProgress(console, clock=clock), LiveProgress(console, clock=clock)):
        progress.stage_entered(0, Stage.LAUNCHING)
        progress.load_progress(0, done_requests=1, elapsed_s=1.0, window_s=0.0)
        progress.trial_finished(sample.trials[0])
        progress.close()
    assert console.file.getvalue() == ""


def test_square_brackets_in_an_engine_s_words_are_no_markup(clock):
    console = Console(file=io.StringIO(), width=80)
    PlainProgress(console, clock=clock).notice("[red]engine[/red] said [/]")
    assert "[red]engine[/red] said [/]" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_pipe_gets_plain_lines_even_with_forced_colours():
    assert isinstance(make_progress(Console(file=io.StringIO(), force_terminal=True)), PlainProgress)


def test_time_left_counts_down_with_the_running_trial(sample):
    progress = StudyProgress.opened(sample.study, sample.trials[:2], 4)
    assert progress.time_left_s(0.0) == 80.0
    progress = progress.trial_started(running(sample.trials[2]), 1, 100.0)
    assert progress.time_left_s(110.0) == 70.0
    assert progress.time_left_s(1000.0) == 40.0
    assert progress.trial_finished(sample.trials[2], 130.0).trials_left == 1


def test_without_a_finished_trial_no_time_is_promised(sample):
    progress = StudyProgress.opened(sample.study, [], 4)
    assert progress.time_left_s(0.0) is None


def test_an_infeasible_trial_is_never_the_best_so_far(sample):
    assert StudyProgress.opened(sample.study, sample.trials, 12).best == sample.trials[2]
