from __future__ import annotations

import re
from dataclasses import replace

import pytest

from optimizer.core.confirmation import confirmation_number
from optimizer.core.recommendation import Recommendation
from optimizer.core.scoring import Verdict
from optimizer.core.study_end import StudyEnd
from optimizer.core.trial import TrialRole, TrialState
from optimizer.report.closing import print_closing, states_text
from optimizer.report.nearest import binding_limit, nearest_miss

COPIED = ("vllm-autotune ", "postgresql://", "/", "--block-size")


def flat(text):
    """Prose without the line breaks that the width put into it."""
    return " ".join(text.split())


def table_row(text, label):
    """The cells of a table's row."""
    line = next(line for line in text.splitlines() if line.startswith(label))
    return re.split(r"\s{2,}", line.strip())


def test_the_best_stands_against_baseline_and_defaults(sample, console, make_closing, printed):
    print_closing(console, make_closing(sample.study, sample.trials))
    text = printed(console)
    assert table_row(text, " ") == ["best #2", "baseline #0", "defaults #1"]
    assert table_row(text, "state") == ["state", "feasible", "feasible", "infeasible"]
    assert table_row(text, "output tok/s") == ["output tok/s", "512.3", "400", "420"]
    assert table_row(text, "vs baseline") == ["vs baseline", "+28 %", "-", "+5.0 %"]
    assert table_row(text, "P99 E2E") == ["P99 E2E <= 800 ms", "712 ms", "700 ms", "950 ms"]
    assert table_row(text, "P99 TTFT")[1:] == ["178 ms", "175 ms", "238 ms"]
    assert table_row(text, "preemptions")[1:] == ["7", "7", "7"]
    assert table_row(text, "prefix-cache hits")[1:] == ["25 %", "25 %", "25 %"]
    assert "In the search one run measured #2 and one run measured #0: the difference is not yet" in flat(text)
    assert "nan" not in text.lower()


def test_what_is_to_be_copied_is_never_broken(sample, console, make_closing, printed):
    closing = make_closing(sample.study, sample.trials)
    print_closing(console, closing)
    lines = printed(console).splitlines()
    draft = """'{"method": "ngram", "num_speculative_tokens": 4}'"""
    assert f"--block-size 16 --max-model-len 512 --max-num-seqs 64 --speculative-config {draft}" in lines
    for command in ("export --format command", "show 2", "dashboard"):
        assert any(line.endswith(f"vllm-autotune {command} --study tiny-cpu") for line in lines)
    assert any(line.endswith(str(closing.record_folder)) for line in lines)


def test_nothing_but_what_is_to_be_copied_is_wider_than_the_console(sample, console, make_closing, printed):
    print_closing(console, make_closing(sample.study, sample.trials))
    long = [line for line in printed(console).splitlines() if len(line.rstrip()) > console.width]
    assert [line for line in long if not any(word in line for word in COPIED)] == []


def test_no_cell_is_broken_on_sixty_columns(sample, console, make_closing, printed):
    print_closing(console, make_closing(sample.study, sample.trials))
    text = printed(console)
    table = text[text.index("best #2") : text.index("Best: #2")].splitlines()
    assert len(table) == 10


def test_how_trials_ended_is_counted_with_causes(sample):
    told = states_text(sample.trials)
    assert told == ("1 running, 2 feasible, 2 infeasible, 1 failed (kv_cache_too_small 1x), 1 rejected, 1 interrupted")
    assert states_text([]) == "no trials"


def test_a_best_baseline_is_said_plainly(sample, console, make_closing, printed):
    print_closing(console, make_closing(sample.study, [sample.trials[0], sample.trials[3]]))
    text = flat(printed(console))
    assert "Nothing better than the baseline was shown to meet the limits" in text
    assert "best = baseline #0" in text
    assert "not yet confirmed" not in text


def test_an_infeasible_baseline_is_said_too(sample, console, make_closing, printed):
    broken = replace(sample.trials[3], number=0, role=TrialRole.BASELINE)
    print_closing(console, make_closing(sample.study, [broken, sample.trials[2]]))
    assert "The baseline itself is infeasible: it does not meet the limits." in flat(printed(console))


def test_a_failed_baseline_leaves_nothing_to_compare_with(sample, console, make_closing, printed):
    failed = replace(sample.trials[4], number=0, role=TrialRole.BASELINE)
    print_closing(console, make_closing(sample.study, [failed, sample.trials[2]]))
    text = printed(console)
    assert "The baseline has no measurement to compare it with." in flat(text)
    assert table_row(text, "vs baseline") == ["vs baseline", "-", "-"]


def test_nothing_feasible_tells_the_nearest_miss_and_the_binding_limit(
    infeasible_sample, console, make_closing, printed
):
    print_closing(console, make_closing(infeasible_sample.study, infeasible_sample.trials))
    text = flat(printed(console))
    assert "No trial met the limits." in text
    assert "The limit that binds: P99 E2E, not met by 2 of 2 measured trials." in text
    assert "Nearest: #1 (infeasible), P99 E2E 950 ms > 800 ms; 18.8 % over its worst limit." in text
    assert "export" not in text


def test_without_any_measurement_no_limit_is_blamed(sample, console, make_closing, printed):
    print_closing(console, make_closing(sample.study, sample.only(TrialState.FAILED)))
    text = flat(printed(console))
    assert "no limit can be said to bind" in text
    assert "Nearest" not in text


def test_a_spent_time_budget_gives_the_line_that_resumes(sample, console, make_closing, printed):
    print_closing(console, make_closing(sample.study, sample.trials, ended=StudyEnd.TIME_BUDGET))
    text = printed(console)
    assert "The time budget is used up." in text
    assert "  vllm-autotune run --space tiny-cpu\n" in text


def test_less_is_better_where_the_study_says_so(minimising_sample, console, make_closing, printed):
    print_closing(console, make_closing(minimising_sample.study, minimising_sample.trials))
    text = printed(console)
    assert "best #2" in text
    assert table_row(text, "P99 TTFT")[1:] == ["150 ms", "200 ms", "210 ms"]
    assert table_row(text, "vs baseline")[1:] == ["-25 %", "-", "+5.0 %"]


def test_no_secret_is_told(sample, console, make_closing, printed):
    print_closing(console, make_closing(sample.study, sample.trials))
    assert "planted" not in printed(console)


def test_an_undecided_trial_is_nearer_than_a_broken_one(infeasible_sample):
    trial = infeasible_sample.trials[0]
    assert trial.score is not None
    limit = replace(trial.score.constraints[0], verdict=Verdict.UNDECIDED, observed=790.0, violation=-0.01)
    score = replace(trial.score, verdict=Verdict.UNDECIDED, constraints=(limit,))
    undecided = replace(trial, number=9, state=TrialState.UNDECIDED, score=score)
    miss = nearest_miss([*infeasible_sample.trials, undecided])
    assert miss is not None
    assert (miss.trial.number, miss.excess_percent) == (9, 0.0)
    assert binding_limit([*infeasible_sample.trials, undecided]) == ("p99_e2e_ms", 3, 3)
    assert nearest_miss([]) is None
    assert binding_limit([]) is None


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (StudyEnd.EXHAUSTED, "every setting of the space that may be launched was tried"),
        (StudyEnd.LITTLE_GAIN, "the search expected less than --stop-below-gain asks"),
    ],
)
def test_an_early_end_says_why(sample, console, make_closing, printed, ended, words):
    print_closing(console, make_closing(sample.study, sample.trials, ended=ended))
    assert words in flat(printed(console))
    print_closing(console, make_closing(sample.study, sample.trials))
    assert flat(printed(console)).count("Ended early") == 1


def test_the_recommended_trial_is_the_one_to_copy_and_the_luckiest_run_is_named(sample, console, make_closing, printed):
    found = Recommendation(0, {}, 0.97, 400.0, 390.0, 410.0, 2, "the best of 2 settings measured feasible")
    print_closing(console, make_closing(sample.study, sample.trials, recommendation=found))
    text = flat(printed(console))
    assert "#0 is the best of 2 settings measured feasible. Expected of it: 390 tok/s to 410 tok/s (95 %)." in text
    assert "The best single run was #2, 512.3 tok/s." in text
    assert "flags of #0" in text
    assert "flags of #2" not in text


@pytest.mark.parametrize(
    ("again", "behind_best", "behind_baseline"),
    [
        ({8: 2}, "2 runs measured the setting of #2 (its figures are those of #2 alone)", "one run measured #0"),
        (
            {8: 2, 9: 2, 10: 0},
            "3 runs measured the setting of #2 (its figures are those of #2 alone)",
            "2 runs measured the setting of #0 (its figures are those of #0 alone)",
        ),
    ],
)
def test_runs_that_the_search_repeated_are_counted(
    sample, console, make_closing, printed, again, behind_best, behind_baseline
):
    repeated = [replace(sample.trials[of], number=number, role=TrialRole.SEARCH) for number, of in again.items()]
    unmeasured = replace(sample.trials[4], number=11, config=sample.trials[2].config)
    print_closing(console, make_closing(sample.study, [*sample.trials, *repeated, unmeasured]))
    assert f"In the search {behind_best} and {behind_baseline}: the difference is not yet" in flat(printed(console))


def test_runs_of_a_confirmation_are_counted_apart(sample, console, make_closing, printed):
    held_out = replace(sample.trials[2], number=confirmation_number(2, 1), role=TrialRole.CONFIRM)
    print_closing(console, make_closing(sample.study, [*sample.trials, held_out]))
    text = flat(printed(console))
    assert "In the search one run measured #2 and one run measured #0. On held-out traffic it is undecided" in text


def test_a_recommendation_of_what_is_not_feasible_counts_for_nothing(sample, console, make_closing, printed):
    found = Recommendation(3, {}, 0.97, 900.0, 890.0, 910.0, 1, "a record that was tampered with")
    print_closing(console, make_closing(sample.study, sample.trials, recommendation=found))
    text = flat(printed(console))
    assert "tampered" not in text
    assert "flags of #2" in text
