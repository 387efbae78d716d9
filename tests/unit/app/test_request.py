"""The options of `run` on top of a space file."""

from __future__ import annotations

import dataclasses

import pytest

from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.config import load_space
from optimizer.core.errors import InputError
from optimizer.core.trial import TrialRole
from optimizer.host.cpus import CpuSplit

GIB = 2**30


def config_with(**options):
    return study_config(RunRequest(space="tiny-cpu", **options))


def test_the_space_alone_leaves_what_it_says():
    config = config_with()
    space = load_space("tiny-cpu")
    assert (config.study, config.engine.kind, config.seed) == ("tiny-cpu", "vllm", 0)
    assert config.trials == space.trials
    assert config.slos == space.parsed_slos()
    assert config.baseline == space.parsed_baseline()


def test_options_replace_what_the_space_says(tmp_path):
    config = config_with(
        study="mine",
        trials=5,
        seed=7,
        objective="goodput",
        slos=("p99_e2e_ms=800", "p99_tpot_ms=50"),
        baseline="vllm serve tiny-kv --max-num-seqs 32",
        set_flags=("block-size=16",),
        engine="simulated",
    )
    assert (config.study, config.trials, config.seed, config.engine.kind) == ("mine", 5, 7, "simulated")
    assert (config.objective.metric, config.objective.maximise) == ("goodput_requests_per_s", True)
    assert [slo.name for slo in config.slos] == ["p99_e2e_ms", "p99_tpot_ms"]
    assert config.baseline.flags == {"max-num-seqs": 32}
    assert config.fixed_flags["block-size"] == 16
    assert "block-size" not in config.space.parameters
    assert config.engine.pin_cpus, "the rest of the engine's section stays"


def test_the_same_engine_by_option_is_the_same_study():
    assert config_with(engine="vllm").identity() == config_with().identity()
    assert config_with(engine="simulated").identity() != config_with().identity()


def test_an_unknown_engine_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="--engine sglang: not known") as caught:
        config_with(engine="sglang")
    assert caught.value.hint == "allowed: vllm, simulated"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"trials": 0}, "--trials 0"),
        ({"slos": ("p99_e2e_ms=800", "p99_e2e_ms=900")}, "contradict"),
        ({"baseline": "vllm serve tiny-kv stray"}, "stray"),
        ({"objective": "speed"}, "--objective speed"),
        ({"model": "./nowhere"}, "nowhere"),
        ({"set_flags": ("port=1",)}, "port"),
    ],
)
def test_a_wrong_option_is_named(options, named):
    with pytest.raises(InputError, match=named):
        config_with(**options)


def test_a_baseline_with_an_environment_of_its_own_starts_every_engine_cold():
    assert config_with().engine.warm_start
    config = config_with(baseline="VLLM_LOGGING_LEVEL=DEBUG vllm serve tiny-kv")
    assert not config.engine.warm_start
    assert any("VLLM_LOGGING_LEVEL" in note for note in config.notes)


def test_memory_is_that_of_the_engines_cores(monkeypatch):
    """On two sockets the client's core may belong to other memory than the engine's."""
    asked = []

    def memory_bytes(*, core):
        asked.append(core)
        return 17 * GIB

    monkeypatch.setattr("optimizer.app.request.split_cpus", lambda: CpuSplit((4, 5), (6,)))
    monkeypatch.setattr("optimizer.app.request.engine_memory_bytes", memory_bytes)
    resolved = settings_of(config_with()).resolve(TrialRole.SEARCH, {"engine-memory": 1.7})
    assert resolved.config.flags["gpu-memory-utilization"] == 0.1
    assert resolved.memory_gib == pytest.approx(1.7)
    assert asked == [4]


def test_on_a_gpu_no_memory_of_the_host_is_read():
    config = study_config(RunRequest(space="qwen13b"))
    assert config.engine.device == "gpu"
    assert settings_of(config).device_memory_bytes is None


def test_every_option_has_a_field_of_its_own():
    required = [field.name for field in dataclasses.fields(RunRequest) if field.default is dataclasses.MISSING]
    assert required == ["space"]
