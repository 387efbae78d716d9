"""`workloads`: what it lists and shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_all_are_listed_with_what_they_stand_for(invoke):
    result = invoke("workloads")
    assert (result.exit_code, result.stderr) == (0, "")
    for name in ("chat-shared-prefix", "mixed-lengths", "multi-turn-chat", "json-output", "agent-loop"):
        assert f"\n{name}  " in f"\n{result.stdout}"
    listed = json.loads(invoke("workloads", "--json").stdout)["workloads"]
    assert len(listed) >= 6
    assert set(listed[0]) == {"name", "description", "arrivals", "requests"}


def test_one_is_shown_with_its_lengths_and_hit_rate(invoke):
    shown = invoke("workloads", "mixed-lengths").stdout
    assert "at most 32 in flight" in shown
    assert "hit rate implied at blocks of 16  0.0%" in shown
    assert "P99" in shown
    data = json.loads(invoke("workloads", "mixed-lengths", "--json").stdout)
    assert data["tokens"]["prompt"] == {"mean": 512, "p50": 512, "p99": 512, "longest": 512}
    assert data["tokens"]["output"]["mean"] == pytest.approx(0.3 * 64 + 0.5 * 128 + 0.2 * 256, rel=0.05)
    assert data["tokens"]["output"]["longest"] == 256
    assert [sample["prompt_tokens"] for sample in data["samples"]] == [512] * 3
    assert data["workload"]["arrivals"]["rate_per_s"] == 8


def test_a_file_of_conversations_tells_what_is_left_out(invoke, tmp_path: Path):
    talk = {"conversations": [{"from": "human", "value": "q" * 40}, {"from": "gpt", "value": "a" * 80}]}
    (tmp_path / "talks.json").write_text(json.dumps([talk, {"conversations": []}, talk]), encoding="utf-8")
    path = tmp_path / "own.yaml"
    path.write_text(
        "name: own\narrivals: {kind: closed_loop, in_flight: 4}\nsource: {kind: sharegpt, path: talks.json}\n"
        "warmup: {requests: 4, max_s: 5}\nwindow: {min_s: 1, max_s: 2, min_requests: 10}\n",
        encoding="utf-8",
    )
    shown = invoke("workloads", str(path)).stdout
    assert "2 requests; 1 conversations without a question and its answer are left out" in shown
    assert "text guessed at four bytes a token" in shown
    assert "not known: it depends on what the file repeats" in shown
    data = json.loads(invoke("workloads", str(path), "--json").stdout)
    assert (data["rows"], data["left_out"], data["tokens_guessed"]) == (2, 1, True)
    assert (data["tokens"]["prompt"]["longest"], data["tokens"]["output"]["longest"]) == (10, 20)


def test_a_name_that_is_none_ends_with_two(invoke):
    result = invoke("workloads", "nothing")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: there is no workload 'nothing'")
    assert "\nhint: built-in: agent-loop" in result.stderr
