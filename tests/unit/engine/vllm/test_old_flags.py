"""The table of old flags, against what three releases know."""

from __future__ import annotations

import pytest

from optimizer.engine.vllm.old_flags import OLD_FLAGS, OLD_SWITCHES, OLD_VARIABLES, Fate
from tests.flag_catalogues import RELEASES, has_setting, release

REMOVED_SINCE_026 = {
    "max-num-partial-prefills",
    "max-long-partial-prefills",
    "calculate-kv-scales",
    "override-attention-dtype",
    "enable-bf16x3-router-gemm",
}
VARIABLES_OF_026 = {
    "VLLM_PREFIX_CACHE_RETENTION_INTERVAL",
    "VLLM_MM_HASHER_ALGORITHM",
    "VLLM_ENGINE_ITERATION_TIMEOUT_S",
}


@pytest.mark.parametrize("version", RELEASES)
def test_no_release_has_an_old_flag(version):
    still_there = {name for name in OLD_FLAGS if release(version).spelled(f"--{name}") is not None}
    expected = REMOVED_SINCE_026 if version == "0.26.0" else set()
    back = {flag.name for flag in OLD_FLAGS.values() if flag.back_in and version.startswith(flag.back_in)}
    assert still_there == expected | back


@pytest.mark.parametrize("version", RELEASES)
def test_no_release_reads_an_old_variable(version):
    expected = VARIABLES_OF_026 if version == "0.26.0" else set()
    assert OLD_VARIABLES.keys() & release(version).variables == expected


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("old", [*OLD_FLAGS.values(), *OLD_VARIABLES.values()], ids=lambda old: old.name)
def test_every_replacement_is_a_flag_of_every_release(version, old):
    if version == "0.26.0" and old.name in VARIABLES_OF_026:
        return
    assert [name for name in old.today if not has_setting(release(version), name)] == []


@pytest.mark.parametrize("old", [*OLD_FLAGS.values(), *OLD_VARIABLES.values()], ids=lambda old: old.name)
def test_every_entry_says_what_became_of_it(old):
    assert old.why
    assert bool(old.today) == (old.fate in (Fate.REPLACED, Fate.RELATED))
    assert (old.convert is not None) == (old.fate is Fate.REPLACED)
    if old.convert is not None:
        for settings in (old.convert("1", 1), old.convert("auto", 2)):
            assert settings.keys() <= set(old.today)


def test_switches_are_those_without_a_value():
    assert "enable-paged-attention" in OLD_SWITCHES
    assert "swap-space" not in OLD_SWITCHES


@pytest.mark.parametrize(
    ("name", "value", "cards", "settings"),
    [
        ("swap-space", "16", 1, {"kv-offloading-size": 16}),
        ("swap-space", "4", 2, {"kv-offloading-size": 8}),
        ("swap-space", "0", 2, {}),
        ("speculative-model", "[ngram]", 1, {"speculative-config.method": "ngram"}),
        ("speculative-model", "org/draft", 1, {"speculative-config.model": "org/draft"}),
        ("cuda-graph-sizes", "1,2,4", 1, {"cudagraph-capture-sizes": [1, 2, 4]}),
        ("cuda-graph-sizes", "1 2", 1, {"cudagraph-capture-sizes": [1, 2]}),
        ("cuda-graph-sizes", "256", 1, {"max-cudagraph-capture-size": 256}),
        ("cuda-graph-mode", "full", 1, {"compilation-config.cudagraph_mode": "FULL"}),
        ("task", "embed", 1, {"runner": "pooling", "convert": "embed"}),
        ("task", "auto", 1, {}),
        ("guided-decoding-backend", "xgrammar:no-fallback", 1, {"structured-outputs-config.backend": "xgrammar"}),
        ("rope-scaling", '{"rope_type": "yarn"}', 1, {"hf-overrides.rope_parameters": {"rope_type": "yarn"}}),
        ("moe-expert-load-balance", "", 1, {"enable-expert-parallel": True, "enable-eplb": True}),
        ("max-batch-size", "64", 1, {"max-num-seqs": 64}),
    ],
)
def test_values_are_taken_over_in_todays_terms(name, value, cards, settings):
    convert = OLD_FLAGS[name].convert
    assert convert is not None
    assert convert(value, cards) == settings


@pytest.mark.parametrize(
    ("value", "settings"),
    [
        ("FLASHINFER", {"attention-backend": "FLASHINFER"}),
        ("FLASH_ATTN_VLLM_V1", {"attention-backend": "FLASH_ATTN"}),
        ("FLASHINFER_VLLM_V1", {"attention-backend": "FLASHINFER"}),
        ("XFORMERS", {}),
    ],
)
def test_the_variable_of_the_attention_backend_is_a_flag_now(value, settings):
    convert = OLD_VARIABLES["VLLM_ATTENTION_BACKEND"].convert
    assert convert is not None
    assert convert(value, 1) == settings
