"""The memory account of a study: when there is one, and what is said when there is none."""

from __future__ import annotations

import json

import pytest

from optimizer.app import device_memory
from optimizer.app.memory import study_memory
from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.app.search import check_rules
from optimizer.core.errors import HostError, InputError
from optimizer.host.gpus import Gpu

GIB = 2**30


def memory_of(**request):
    config = study_config(RunRequest(**request))
    return config, settings_of(config), study_memory(config, settings_of(config), lambda: ())


def test_a_bundled_model_on_the_cpu_is_foretold():
    config, settings, found = memory_of(space="tiny-cpu")
    assert found.notes == ()
    prediction = found.prescreen.predict(config.resolve({}, device_memory_bytes=settings.device_memory_bytes()))
    assert prediction.pool_tokens.low < 36_000 < prediction.pool_tokens.high
    assert prediction.kv_bytes_per_token == 32 * 1024


def test_the_simulated_engine_is_not():
    assert memory_of(space="tiny-cpu", engine="simulated")[2].prescreen is None


def test_a_hub_id_says_why_not():
    _, _, found = memory_of(space="qwen13b")
    assert found.prescreen is None
    assert found.notes == (
        "cannot predict the engine's memory: Qwen/Qwen2.5-14B-Instruct is a hub id, and its config.json is not at "
        "hand; whatever does not fit is found by starting it",
    )


@pytest.mark.parametrize("content", ["{", '{"architectures": ["BrandNewForCausalLM"]}', '{"architectures": 3}', "[]"])
def test_a_spoilt_configuration_says_why_not_and_the_study_goes_on(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    config, settings, found = memory_of(space="tiny-cpu", model=str(tmp_path))
    assert found.prescreen is None
    assert found.notes[0].startswith("cannot predict the engine's memory: ")
    check_rules(config, settings)


class Nvml:
    def __init__(self, *gib):
        self._gib = gib

    def gpus(self):
        return tuple(Gpu(f"GPU-{n}", n, "NVIDIA H200", gib * GIB) for n, gib in enumerate(self._gib))

    def close(self):
        pass


def test_the_smallest_visible_card_counts(monkeypatch, project_root):
    monkeypatch.setattr(device_memory, "open_nvml", lambda: Nvml(141, 80, 24))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    config, _, found = memory_of(space="qwen13b", model=str(project_root / "tests/data/h200"))
    prediction = found.prescreen.predict(config.resolve({}, device_memory_bytes=None))
    assert prediction.requested_bytes == pytest.approx(0.92 * 80 * GIB, rel=1e-6)


@pytest.mark.parametrize("nvml", [None, Nvml(), HostError("the driver does not answer")])
def test_without_a_card_in_sight_nothing_is_foretold(monkeypatch, project_root, nvml):
    def opened():
        if isinstance(nvml, HostError):
            raise nvml
        return nvml

    monkeypatch.setattr(device_memory, "open_nvml", opened)
    _, _, found = memory_of(space="qwen13b", model=str(project_root / "tests/data/h200"))
    assert found.prescreen is None
    assert "the GPU's memory is not known on this host" in found.notes[0]


def test_a_space_of_which_nothing_can_start_is_refused_before_anything_is_launched(project_root):
    """14 billion parameters in 32 bits, where an engine gets 2.1 GiB at the most."""
    config = study_config(RunRequest(space="tiny-cpu", model=str(project_root / "tests/data/h200")))
    with pytest.raises(InputError, match="nothing in the space can start") as caught:
        check_rules(config, settings_of(config))
    assert "55." in caught.value.message, "GiB of weights"
    assert caught.value.exit_code == 2


def test_the_vision_part_is_said_to_be_left_out(tmp_path):
    text = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
    }
    model = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(model))
    _, _, found = memory_of(space="tiny-cpu", model=str(tmp_path))
    assert found.notes == ("memory account: the vision part of the model is not counted",)
