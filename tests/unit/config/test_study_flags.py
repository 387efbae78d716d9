from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from optimizer.config import SpaceFile, built_in_spaces
from optimizer.config.study_flags import study_flag_problems
from optimizer.core.errors import InputError
from tests.drill import SPACE
from tests.flag_catalogues import RELEASES, checker


def space(**changes: Any) -> SpaceFile:
    return SpaceFile.from_data({**copy.deepcopy(SPACE), **changes}, origin="space.yaml", folder=Path())


def lines(found: SpaceFile, **options: Any) -> list[str]:
    return [f"{p.where}: {p.message}" for p in study_flag_problems(checker(), found, **options)]


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("built_in", built_in_spaces(), ids=lambda space: space.name)
def test_every_built_in_space_is_right_for_every_release(version, built_in):
    assert study_flag_problems(checker(version), built_in) == []


def test_a_parameter_with_a_wrong_name():
    wrong = space(parameters={"max-num-seq": {"kind": "int", "low": 4, "high": 8}})
    (line,) = lines(wrong)
    assert line.startswith("space.yaml: parameters.max-num-seq: --max-num-seq: vLLM 0.32.0 has no such flag")


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ({"flag": "max-num-seqs", "kind": "float", "low": 0.5, "high": 1.5}, ["not 0.5", "not 1.5"]),
        ({"flag": "max-num-seqs", "kind": "bool"}, ["is only switched on", "is only switched off"]),
        (
            {"flag": "kv-cache-dtype", "kind": "choice", "choices": ["fp8", "fp9", "fp7"]},
            ["not be 'fp9'", "not be 'fp7'"],
        ),
        ({"flag": "enforce-eager", "kind": "choice", "choices": ["yes", "no"]}, ["such as 'yes'", "such as 'no'"]),
        ({"flag": "headless-mode", "kind": "bool"}, ["no such flag"]),
        ({"flag": "compilation-config.cudagraph_mod", "kind": "choice", "choices": ["FULL"]}, ["no key cudagraph_mod"]),
        (
            {"kind": "choice", "sets": {"a": {}, "b": {"block-siz": 16, "max-num-seqs": "x"}}},
            ["no such flag", "not 'x'"],
        ),
    ],
)
def test_every_choice_and_both_ends_of_a_range_are_looked_at(parameter, said):
    found = lines(space(parameters={"some": parameter}))
    assert len(found) == len(said)
    assert all(words in line for words, line in zip(said, found, strict=True))
    assert all(line.startswith("space.yaml: parameters.some: ") for line in found)


def test_memory_in_gib_is_a_number_whatever_the_host_has():
    memory = {"flag": "gpu-memory-utilization", "unit": "GiB", "kind": "float", "low": 1.0, "high": 2.0}
    assert lines(space(parameters={"memory": memory})) == []


def test_fixed_flags_variables_and_the_baseline():
    wrong = space(
        engine={
            "flags": {"swap-space": 4, "enforce-eager": True},
            "env": {"VLLM_USE_V1": "1", "OMP_NUM_THREADS": "4"},
        },
        baseline="vllm serve tiny-kv --use-v2-block-manager",
    )
    where = [line.split(": --")[0].split(": VLLM")[0] for line in lines(wrong)]
    assert where == ["space.yaml: engine.flags", "space.yaml: engine.env", "space.yaml: baseline"]


def test_options_take_the_place_of_the_file_and_are_named():
    wrong = space(baseline="vllm serve tiny-kv --use-v2-block-manager")
    found = lines(wrong, baseline="vllm serve tiny-kv --max-num-seq 8", set_flags=("block-siz=16", "max-num-seqs=8"))
    assert [line.split(": ")[0] for line in found] == ["--set", "--baseline"]


def test_a_baseline_that_games_the_score_is_refused_with_the_reason():
    (line,) = lines(space(baseline="vllm serve tiny-kv --stream-interval 8 --host 0.0.0.0 --disable-log-stats"))
    assert line.startswith("space.yaml: baseline: --stream-interval may not be set: it bundles tokens")


@pytest.mark.parametrize(
    "parameters",
    [
        {"speculative-config.rejection_sample_method": {"kind": "choice", "choices": ["standard", "synthetic"]}},
        {
            "speculation": {
                "kind": "choice",
                "sets": {"a": {}, "b": {"speculative-config.synthetic_acceptance_length": 3}},
            }
        },
        {"stream-interval": {"kind": "int", "low": 1, "high": 8}},
    ],
)
def test_no_parameter_games_the_score(parameters):
    with pytest.raises(InputError, match=r"parameters\.\S+: .*may not be"):
        space(parameters=parameters)


def test_fixed_flags_may_not_game_the_score_either():
    flags = {"speculative-config": {"method": "ngram", "rejection_sample_method": "synthetic"}}
    with pytest.raises(InputError, match="may not be set: it accepts guessed tokens"):
        space(engine={"flags": flags})
