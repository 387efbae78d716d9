"""Every rule fires where it should, is silent where it should, and tells numbers."""

from __future__ import annotations

import pytest

from optimizer.config import build_study_config, load_space, parse_serve_command
from optimizer.config.lint import RULES, LintSubject, lint, subject_of_command, subject_of_study
from tests.unit.config.lint.cases import CASES, Case
from tests.unit.config.lint.subjects import NGRAM, choice, command, number, space, traffic

_IDS = [f"{case.rule}-{'silent' if case.words is None else 'fires'}-{index}" for index, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=_IDS)
def test_a_rule_fires_or_is_silent(case: Case) -> None:
    messages = [finding.message for finding in lint(case.subject) if finding.rule == case.rule]
    if case.words is None:
        assert messages == []
    else:
        assert any(case.words in message for message in messages), messages


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_each_rule_is_seen_to_fire_and_to_be_silent(name):
    assert {case.words is None for case in CASES if case.rule == name} == {True, False}


def test_names_are_unique_and_every_rule_says_what_why_and_what_to_do():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.means and rule.why and rule.remedy for rule in RULES)


def test_every_finding_says_where_and_what_to_do():
    findings = [finding for case in CASES for finding in lint(case.subject)]
    assert len(findings) > len(RULES)
    assert all(finding.message and finding.remedy and finding.where for finding in findings)


def test_nothing_is_found_where_nothing_is_known():
    assert lint(LintSubject()) == []


def test_errors_come_first_and_advice_last():
    severities = [
        finding.severity
        for finding in lint(command("--enforce-eager --max-model-len 512 --max-num-seqs 99", workload=traffic()))
    ]
    assert severities == ["error", "warning", "advice"]


def test_where_is_the_flag_of_a_command_or_the_key_of_a_space():
    (given,) = lint(command("--gpu-memory-utilization 0.99"))
    (searched,) = lint(space({"memory": number("float", 0.9, 0.99, flag="gpu-memory-utilization")}))
    (fixed,) = lint(space({"block-size": choice(16, 32)}, flags={"gpu-memory-utilization": 0.99}))
    assert (given.where, searched.where, fixed.where) == (
        "--gpu-memory-utilization",
        "parameters.memory",
        "engine.flags.gpu-memory-utilization",
    )


def test_what_the_search_can_avoid_is_advice():
    (fixed,) = lint(command("--spec-method ngram --spec-tokens 4 --load-format dummy"))
    (optional,) = lint(space({"speculation": NGRAM}, flags={"load-format": "dummy"}))
    assert (fixed.severity, optional.severity) == ("warning", "advice")


def test_remedies_carry_the_number_to_set():
    (cap,) = lint(command("--max-model-len 32768", workload=traffic()))
    assert "set it to 1024" in cap.remedy, "640 x 1.5 = 960 tokens, in steps of 256"
    (tokens,) = lint(command("--max-num-seqs 64 --max-num-batched-tokens 256", workload=traffic(in_flight=64)))
    assert "raise max-num-batched-tokens to 512 or more" in tokens.remedy, "64 + 256 tokens, in steps of 256"


@pytest.mark.parametrize("name", ["tiny-cpu", "qwen13b"])
def test_the_built_in_spaces_have_nothing_worse_than_advice(name):
    findings = lint(subject_of_study(build_study_config(load_space(name))))
    assert {finding.severity for finding in findings} <= {"advice"}
    assert {finding.rule for finding in findings} <= {
        "speculation-at-high-concurrency",
        "speculation-on-dummy-weights",
    }


def test_a_command_is_seen_with_the_workload_of_a_study():
    study = subject_of_study(build_study_config(load_space("qwen13b")))
    pasted = parse_serve_command("vllm serve m --max-model-len 2048 --stream-interval 4", origin="test")
    rules = {finding.rule for finding in lint(subject_of_command(pasted, around=study))}
    assert rules == {"context-cap-below-longest-request", "flag-games-the-score"}


def test_defaults_of_the_installed_vllm_win_over_those_known_here():
    known = command("--max-num-seqs 600", device_memory_bytes=24 * 2**30)
    assert "batched-tokens-below-seqs" not in {finding.rule for finding in lint(known)}
    installed = command("--max-num-seqs 600", vllm_defaults={"max-num-batched-tokens": 512})
    assert "batched-tokens-below-seqs" in {finding.rule for finding in lint(installed)}
