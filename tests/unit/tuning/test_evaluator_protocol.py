"""What an external evaluator may answer, to the letter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.failure import Blame, FailureKind
from optimizer.core.reported import ReportedMetrics
from optimizer.tuning.evaluator_protocol import (
    EvaluatorRequest,
    FailedAnswer,
    Nonsense,
    OkAnswer,
    plain,
    read_answer,
)

WANTED = ("output_tokens_per_s", "p97_e2e_ms")
OK: dict[str, Any] = {"status": "ok", "metrics": {"output_tokens_per_s": 12.5, "p97_e2e_ms": 700, "preemptions": None}}
FAILED = {"status": "failed", "kind": "out_of_memory", "blame": "config", "detail": "it is\nkilled", "violation": 0.7}


def answer(**changes):
    return read_answer(json.dumps({**OK, **changes}), WANTED)


def failed(**changes):
    return read_answer(json.dumps({**FAILED, **changes}), WANTED)


def test_an_ok_gives_the_metrics_that_have_a_value():
    assert answer() == ReportedMetrics({"output_tokens_per_s": 12.5, "p97_e2e_ms": 700.0}, {})
    assert answer(stderr={"p97_e2e_ms": 7}).standard_errors == {"p97_e2e_ms": 7.0}


def test_a_failed_gives_a_failure():
    failure = failed()
    assert (failure.kind, failure.blame, failure.detail) == (FailureKind.OUT_OF_MEMORY, Blame.CONFIG, "it is killed")
    assert (failure.violation, failure.retryable) == (0.7, False)
    assert failed(violation=None).violation is None


def test_a_fault_of_the_host_is_tried_again_and_teaches_nothing():
    failure = failed(blame="host")
    assert (failure.blame, failure.retryable, failure.violation) == (Blame.HOST, True, None)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "no JSON"),
        ("done", "no JSON"),
        ("{'status': 'ok'}", "no JSON"),
        ("[1]", "no JSON object"),
        ("null", "no JSON object"),
        ("[" * 100_000, "no JSON"),
        ("9" * 10_000, "no JSON"),
        ("{}", 'no "status"'),
        ('{"status": "OK"}', "neither"),
        ('{"status": "ok"}', "metrics"),
        ('{"status": "ok", "metrics": []}', "metrics"),
        ('{"status": "ok", "metrics": {}} trailing', "no JSON"),
        ('{"status": "ok", "metrics": {"output_tokens_per_s": NaN}}', "metrics.output_tokens_per_s.*finite"),
        ('{"status": "ok", "metrics": {"output_tokens_per_s": Infinity}}', "metrics.output_tokens_per_s"),
        ('{"status": "ok", "metrics": {"output_tokens_per_s": -Infinity}}', "metrics.output_tokens_per_s"),
        ('{"status": "ok", "metrics": {"output_tokens_per_s": 1e999}}', "metrics.output_tokens_per_s"),
        ('{"status": "failed"}', "kind"),
    ],
)
def test_what_is_no_answer_is_said_to_be_none(line, why):
    with pytest.raises(Nonsense, match=why):
        read_answer(line, WANTED)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"extra": 1}, "extra"),
        ({"metrics": {**OK["metrics"], "tokens": 1}}, "metrics.tokens is no metric"),
        ({"metrics": {"output_tokens_per_s": 1}}, "p97_e2e_ms has no value"),
        ({"metrics": {"output_tokens_per_s": None, "p97_e2e_ms": 1}}, "output_tokens_per_s has no value"),
        ({"metrics": {**OK["metrics"], "output_tokens_per_s": "12"}}, "output_tokens_per_s"),
        ({"metrics": {**OK["metrics"], "output_tokens_per_s": True}}, "output_tokens_per_s"),
        ({"metrics": {**OK["metrics"], "output_tokens_per_s": -1}}, "output_tokens_per_s"),
        ({"metrics": {**OK["metrics"], "error_rate": 1.5}}, "error_rate is 1.5: a share"),
        ({"stderr": {"p97_e2e_ms": -1}}, "stderr.p97_e2e_ms"),
        ({"stderr": {"preemptions": 1}}, "stderr.preemptions is not among"),
        ({"stderr": None}, "stderr"),
    ],
)
def test_an_ok_is_taken_to_the_letter(changes, why):
    with pytest.raises(Nonsense, match=why):
        answer(**changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "oom"}, "kind"),
        ({"blame": "me"}, "blame"),
        ({"detail": ""}, "detail"),
        ({"violation": 0}, "violation"),
        ({"violation": -1}, "violation"),
        ({"violation": float("nan")}, "violation"),
        ({"violation": float("inf")}, "violation"),
        ({"violation": "far"}, "violation"),
        ({"metrics": {}}, "metrics"),
    ],
)
def test_a_failed_is_taken_to_the_letter(changes, why):
    with pytest.raises(Nonsense, match=why):
        failed(**changes)


@given(st.text())
def test_whatever_is_printed_it_is_an_answer_or_nonsense(line):
    with pytest.raises(Nonsense):
        read_answer(line, WANTED)


@given(st.text(max_size=3000))
def test_plain_text_fits_a_line_of_any_record(text):
    line = plain(text)
    assert len(line) <= 500
    assert line == "" or (line.isprintable() and line.encode())


def test_the_page_tells_of_every_key_and_every_kind(project_root):
    page = (project_root / "docs" / "evaluator.md").read_text()
    keys = {key for model in (EvaluatorRequest, OkAnswer, FailedAnswer) for key in model.model_fields}
    assert [key for key in keys if f"| `{key}` |" not in page] == []
    assert [kind.value for kind in FailureKind if f"`{kind}`" not in page] == []


def test_the_answers_on_the_page_are_answers(project_root):
    page = (project_root / "docs" / "evaluator.md").read_text()
    blocks = [block for part in page.split("```json\n")[1:] if (block := part.partition("```")[0])]
    request, *answers = blocks
    EvaluatorRequest.model_validate_json(request)
    assert [type(read_answer(text, ("output_tokens_per_s", "p99_e2e_ms"))).__name__ for text in answers] == [
        "ReportedMetrics",
        "Failure",
    ]
