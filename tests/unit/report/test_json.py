from __future__ import annotations

import json
import math
from dataclasses import replace

from optimizer.core.recommendation import Recommendation
from optimizer.metrics import Bound, BoundKind
from optimizer.report.json_view import export_view, study_list, study_view
from optimizer.report.trial_json import trial_detail


def strict(view):
    """The JSON as a parser reads it that refuses NaN and Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(view.model_dump_json(), parse_constant=refuse)


def test_the_list_of_studies(sample, infeasible_sample):
    view = study_list([(sample.study, sample.trials), (infeasible_sample.study, infeasible_sample.trials)])
    assert strict(view) == {
        "studies": [
            {"study": "tiny-cpu", "trials": 8, "best": 2},
            {"study": "tiny-cpu", "trials": 4, "best": None},
        ]
    }


def test_a_study_has_exactly_the_promised_keys(sample):
    view = strict(study_view(sample.study, sample.trials))
    assert list(view) == ["study", "best", "recommended", "nothing_feasible", "trials"]
    assert view["recommended"] is None, "nothing was derived"
    assert view["nothing_feasible"] is None, "a trial is feasible"
    assert view["best"] == 2
    keys = {"number", "role", "state", "params", "value", "verdict", "metrics", "failure"}
    assert all(set(trial) == keys for trial in view["trials"])
    assert [trial["state"] for trial in view["trials"]] == [
        "feasible", "infeasible", "feasible", "infeasible", "failed", "rejected", "interrupted", "running"
    ]  # fmt: skip
    assert [trial["role"] for trial in view["trials"]][:3] == ["baseline", "default", "search"]


def test_a_measured_trial(sample):
    trial = strict(study_view(sample.study, sample.trials))["trials"][2]
    assert trial["value"] == 512.34
    assert trial["verdict"] == "feasible"
    assert trial["params"] == {"max-num-seqs": 64}
    assert trial["failure"] is None
    assert trial["metrics"]["p99_e2e_ms"] == 712.0
    assert trial["metrics"]["p99_itl_ms"] is None, "it is NaN in the record"
    assert trial["metrics"]["spec_acceptance_rate"] is None


def test_a_trial_without_measurement_has_nulls_under_the_same_keys(sample):
    trial = strict(study_view(sample.study, sample.trials))["trials"][4]
    assert trial["value"] is None
    assert trial["verdict"] is None
    assert trial["metrics"] == dict.fromkeys(
        ("output_tokens_per_s", "p99_e2e_ms", "p99_ttft_ms", "p99_tpot_ms", "p99_itl_ms", "preemptions")
    )
    assert trial["failure"] == {
        "kind": "kv_cache_too_small",
        "stage": "launching",
        "blame": "config",
        "evidence": ["ValueError: To serve at least one request", "with [brackets] and HF_TOKEN=***"],
    }


def test_what_is_recommended_stands_beside_the_best(sample):
    found = Recommendation(2, {"block-size": 16}, 0.97, 500.0, 480.0, math.inf, 1, "the best of 2")
    view = strict(study_view(sample.study, sample.trials, found))["recommended"]
    assert (view["trial"], view["probability"], view["value"], view["low"]) == (2, 0.97, 500.0, 480.0)
    assert view["high"] is None
    assert (view["runs"], view["reason"]) == (1, "the best of 2")


def test_the_export(sample):
    best = sample.trials[2]
    view = strict(export_view(sample.study, sample.trials, best, best.config))
    assert list(view) == ["argv", "flags", "env", "trial", "value", "baseline_value", "improvement", "confirmation"]
    assert view["flags"]["speculative-config"] == {"method": "ngram", "num_speculative_tokens": 4}
    assert view["env"] == {"VLLM_CPU_KVCACHE_SPACE": "1"}
    assert (view["trial"], view["value"], view["baseline_value"]) == (2, 512.34, 400.0)
    assert view["improvement"] == 512.34 / 400
    assert view["confirmation"] is None


def test_one_trial_in_full(sample):
    view = strict(trial_detail(sample.trials[4]))
    assert view["failure"]["exit_code"] == 1
    assert [attempt["number"] for attempt in view["attempts"]] == [1, 2]
    assert view["attempts"][0]["ended_at"] is None
    assert view["attempts"][1]["stages"][0] == {
        "stage": "launching", "started_at": "2026-03-01T09:30:00Z", "duration_s": 20.0
    }  # fmt: skip
    limit = strict(trial_detail(sample.trials[3]))["score"]["limits"][0]
    assert (limit["name"], limit["verdict"], limit["high"]) == ("p99_e2e_ms", "infeasible", None)


def test_what_bound_a_run_is_told_by_its_name(sample):
    note = Bound(BoundKind.API_SERVER, "its busiest thread used 0.97 of a core").note
    trial = replace(sample.trials[2], notes=(*sample.trials[2].notes, note))
    assert strict(trial_detail(trial))["bound_by"] == "api_server"
    assert strict(trial_detail(sample.trials[2]))["bound_by"] is None


def test_no_number_in_a_record_makes_bad_json(sample):
    best = sample.trials[2]
    limit = replace(best.score.constraints[0], observed=math.inf, low=math.nan, violation=math.inf)
    score = replace(best.score, value=math.nan, constraints=(limit,))
    odd = replace(best, score=score, params={"x": math.inf}, metrics={"preemptions": math.nan})
    view = strict(trial_detail(odd))
    assert view["value"] is None
    assert view["params"] == {"x": None}
    assert view["score"]["limits"][0]["observed"] is None
    assert strict(export_view(sample.study, [*sample.trials, odd], odd, odd.config))["improvement"] is None


def test_no_secret_is_in_any_json(sample):
    best = sample.trials[2]
    views = [study_view(sample.study, sample.trials), export_view(sample.study, sample.trials, best, best.config)]
    views += [trial_detail(trial) for trial in sample.trials]
    assert all("hf_planted" not in view.model_dump_json() for view in views)
