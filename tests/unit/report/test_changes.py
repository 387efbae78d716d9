from __future__ import annotations

from dataclasses import replace

from optimizer.core.engine_config import EngineConfig
from optimizer.report.changes import changed_flags, trial_changes


def test_changed_flags_stand_as_they_are_typed_and_missing_ones_are_named():
    baseline = EngineConfig("vllm", "m", {"max-num-seqs": 8, "block-size": 16, "enforce-eager": True})
    config = EngineConfig("vllm", "m", {"max-num-seqs": 64, "enforce-eager": True, "enable-prefix-caching": False})
    assert changed_flags(config, baseline) == "--no-enable-prefix-caching --max-num-seqs 64 (unset: --block-size)"
    assert changed_flags(baseline, baseline) == ""


def test_a_secret_flag_is_not_shown():
    assert "pl4nted" not in changed_flags(EngineConfig("vllm", "m", {"hf-token": "pl4nted"}), None)


def test_a_trial_is_told_by_what_is_known_of_it(sample):
    baseline, default, best = sample.trials[:3]
    rejected = sample.trials[5]
    assert trial_changes(baseline, baseline) == "flags as given"
    assert trial_changes(default, baseline) == "(unset: --block-size, --max-num-seqs)"
    assert trial_changes(best, baseline).startswith("--max-num-seqs 64 --speculative-config '{")
    assert trial_changes(rejected, baseline) == "max-num-seqs=2048"
    assert trial_changes(replace(rejected, params={}), baseline) == "no searched flag"
    assert trial_changes(replace(best, config=baseline.config), baseline) == "flags as the baseline"
