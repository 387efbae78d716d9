"""A study's recorded configuration, made whole again, is the one it was begun with."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from optimizer.config import StudyConfig, build_study_config, built_in_spaces, load_space
from optimizer.config.recorded import recorded_config
from optimizer.core.errors import InputError
from optimizer.core.record import StudyRecord

SPACES = [space.name for space in built_in_spaces()]


def recorded(config: StudyConfig) -> StudyRecord:
    """As it comes back from a database: through JSON text."""
    data = json.loads(json.dumps(config.as_dict()))
    return StudyRecord(config.study, datetime.now(UTC), {}, data, config.objective.metric, config.objective.maximise)


@pytest.mark.parametrize("space", SPACES)
def test_every_built_in_space_comes_back_the_same(space):
    config = build_study_config(load_space(space))
    again = recorded_config(recorded(config))
    assert again.as_dict() == config.as_dict()
    assert again.model == config.model
    assert again.baseline_config(device_memory_bytes=2**34) == config.baseline_config(device_memory_bytes=2**34)
    assert again.resolve({}, device_memory_bytes=2**34) == config.resolve({}, device_memory_bytes=2**34)


def test_overrides_are_kept():
    config = build_study_config(
        load_space("tiny-cpu"),
        study="mine",
        slos=("p99_ttft_ms=250", "p99_e2e<=1.2x"),
        baseline="OMP_NUM_THREADS=2 vllm serve tiny-kv --max-num-seqs 8 --no-enable-prefix-caching",
        set_flags=("block-size=32",),
        trials=7,
        seed=11,
        workload="mixed-lengths",
    )
    again = recorded_config(recorded(config))
    assert (again.study, again.seed, again.trials, again.slos) == ("mine", 11, 7, config.slos)
    assert again.identity() == config.identity()
    assert (again.baseline.flags, again.baseline.env) == (config.baseline.flags, config.baseline.env)
    assert again.workload == config.workload.model_copy(update={"description": ""})


@pytest.fixture
def with_file(tmp_path):
    file = tmp_path / "asked.jsonl"
    file.write_text('{"prompt": [1, 2, 3], "output_tokens": 4}\n' * 3)
    workload = tmp_path / "w.yaml"
    workload.write_text(
        "name: w\narrivals: {kind: closed_loop, in_flight: 2}\nsource: {kind: jsonl, path: asked.jsonl}\n"
        "warmup: {requests: 1, max_s: 5}\nwindow: {min_s: 1, max_s: 2, min_requests: 3}\n"
    )
    return file, recorded(build_study_config(load_space("tiny-cpu"), workload=str(workload)))


def test_requests_from_a_file_are_found_again(with_file):
    file, study = with_file
    assert recorded_config(study).workload.source.path == str(file)


def test_a_file_that_changed_shows_in_the_identity(with_file):
    file, study = with_file
    before = recorded_config(study).identity()
    file.write_text('{"prompt": [1, 2, 4], "output_tokens": 4}\n' * 3)
    assert recorded_config(study).identity() != before


def test_a_file_that_is_gone_is_named(with_file):
    file, study = with_file
    file.unlink()
    with pytest.raises(InputError, match=r"asked\.jsonl"):
        recorded_config(study)


@pytest.mark.parametrize("missing", ["workload", "verdict", "engine", "seed"])
def test_a_record_that_lacks_something_says_so(missing):
    study = recorded(build_study_config(load_space("tiny-cpu")))
    study = replace(study, config={key: value for key, value in study.config.items() if key != missing})
    with pytest.raises(InputError, match=f"cannot be used again: '{missing}'"):
        recorded_config(study)
