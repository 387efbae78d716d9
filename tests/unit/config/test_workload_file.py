"""Built-in workloads, and workload files of a user's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from optimizer.config import built_in_workloads, load_workload
from optimizer.core.errors import InputError
from optimizer.load import RequestPlan
from optimizer.load.hit_rate import expected_prefix_hit_rate

OWN = """
name: own
arrivals: {kind: poisson, rate_per_s: 8, max_in_flight: 32}
prompt_tokens: 50-300
output_tokens: "0.3:64,0.5:128,0.2:256"
warmup: {requests: 4, max_s: 5}
window: {min_s: 1, max_s: 2, min_requests: 10}
"""
OF_FILE = """
name: own
arrivals: {kind: closed_loop, in_flight: 4}
source: {kind: jsonl, path: rows.jsonl}
warmup: {requests: 4, max_s: 5}
window: {min_s: 1, max_s: 2, min_requests: 10}
"""


@pytest.mark.parametrize("workload", built_in_workloads(), ids=lambda workload: workload.name)
def test_a_built_in_workload_says_what_it_is_and_makes_requests(workload):
    assert load_workload(workload.name) == workload
    assert "assumption" in workload.description, "its lengths come from nowhere else, and it says so"
    assert not workload.needs_tokenizer, "it runs on a model of any kind"
    request = RequestPlan(workload, 0, 1, 512).request(0)
    assert request.prompt_tokens <= workload.longest_prompt_tokens
    assert 0 <= expected_prefix_hit_rate(workload, 16, count=50) < 1
    assert workload.window.min_requests >= 1000, "a P99 needs ten times as many as lie beyond it"


def test_there_is_one_of_each_kind():
    workloads = built_in_workloads()
    assert {workload.arrivals.kind for workload in workloads} >= {"closed_loop", "poisson", "gamma"}
    assert any(workload.sessions for workload in workloads)
    assert any(workload.structured_output for workload in workloads)


def test_a_file_is_read(tmp_path: Path):
    path = tmp_path / "own.yaml"
    path.write_text(OWN, encoding="utf-8")
    workload = load_workload(str(path))
    assert (workload.arrivals.words, workload.output_tokens.words) == (
        "8 requests/s (Poisson), at most 32 in flight",
        "64/128/256",
    )


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("rate_per_s: 8", "rate_per_s: 0", "arrivals.rate_per_s: 0: input should be greater than 0"),
        ("rate_per_s: 8", "rate_per_s: -2", "arrivals.rate_per_s: -2: input should be greater than 0"),
        ("rate_per_s: 8", "rate_pers: 8", "arrivals.rate_pers: unknown key; did you mean rate_per_s?"),
        (
            "kind: poisson",
            "kind: poison",
            "arrivals.kind: 'poison' is not known; allowed: closed_loop, constant, poisson, gamma, ramp, trace",
        ),
        ("max_in_flight: 32", "max_in_flight: 0", "arrivals.max_in_flight: 0: input should be greater than"),
        ("50-300", "300-50", "prompt_tokens: '300-50': the low end is above the high one"),
        ("0.3:64,0.5:128,0.2:256", "0.3:64,oops", "output_tokens: '0.3:64,oops' is no length"),
        ("50-300", "{kind: fixed, token: 3}", "prompt_tokens.token: unknown key; did you mean tokens?"),
        ("prompt_tokens: 50-300", "source: {kind: jsonl}", "source.path: is missing, and required"),
        ("prompt_tokens: 50-300", "source: {kind: json, path: x}", "source.kind: 'json' is not known"),
        ("prompt_tokens: 50-300", "", "prompt_tokens: is missing, and there is no source"),
        ("min_requests: 10", "min_requests: 10, max_requests: 5", "window: min_requests is 10 and must not exceed"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path: Path, old: str, new: str, line: str):
    path = tmp_path / "own.yaml"
    assert old in OWN
    path.write_text(OWN.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_workload(str(path))
    assert f"{path}: {line}" in caught.value.message


def test_a_file_of_requests_lies_beside_the_workload_and_is_checked_at_once(tmp_path: Path):
    path = tmp_path / "own.yaml"
    path.write_text(OF_FILE, encoding="utf-8")
    with pytest.raises(InputError, match=r"rows\.jsonl: the file cannot be read: No such file"):
        load_workload(str(path))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "q", "output_tokens": 3}\n' * 3 + "{", encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / 'rows.jsonl'}: line 4: this is not JSON")):
        load_workload(str(path))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "q", "output_tokens": 3}\n' * 3, encoding="utf-8")
    assert load_workload(str(path)).longest_request_tokens == 4


def test_a_name_that_is_none_suggests_the_nearest():
    with pytest.raises(InputError, match="there is no workload 'chat-sharedprefix'; did you mean chat-shared-prefix"):
        load_workload("chat-sharedprefix")
    with pytest.raises(InputError, match=r"nowhere\.yaml: there is no such file"):
        load_workload("nowhere.yaml")
