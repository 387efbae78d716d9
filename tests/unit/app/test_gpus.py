"""The cards of a study: when they are leased, which, and what is recorded of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from optimizer.app.engine_choice import EngineChoice
from optimizer.app.gpus import StudyGpus, study_gpus
from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.app.run_study import run_study
from optimizer.core.errors import HostError, InputError
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.record import StudyRecord
from optimizer.core.trial import Stage
from optimizer.engine.vllm.installation import VllmInstallation
from optimizer.host.leases import lease_gpus
from optimizer.tuning.trial_pipeline import AttemptOutcome
from tests.gpu.fake_nvml import GIB, FakeNvml, card

SIMULATED = EngineChoice("simulated", "1", None)
L4 = "NVIDIA L4"


def vllm(torch: str = "2.11.0+cu130") -> EngineChoice:
    return EngineChoice("vllm", "0.26.0", VllmInstallation("/engine/python", "0.26.0", torch, "3.12"))


@pytest.fixture
def nvml(monkeypatch, tmp_path) -> FakeNvml:
    """Two cards, and leases in a folder of the test."""
    fake = FakeNvml((card(0), card(1)))
    monkeypatch.setattr("optimizer.app.gpus.open_nvml", lambda: fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = tmp_path / "leases"
    monkeypatch.setattr(
        "optimizer.app.gpus.lease_gpus",
        lambda gpus, count, *, study: lease_gpus(gpus, count, study=study, folder=folder),
    )
    return fake


@pytest.fixture
def opened(nvml):
    """Opens the cards of a study on `qwen13b`: one card, device gpu."""

    def open_(engine: EngineChoice | None = None, *, space="qwen13b", known=None, env=None, **options):
        config = study_config(RunRequest(space=space, **options))
        if env is not None:
            object.__setattr__(config, "engine", config.engine.model_copy(update={"env": env}))
        return study_gpus(config, settings_of(config), engine or vllm(), known)

    return open_


def chosen(gpus: StudyGpus) -> list[int]:
    return [gpu.index for gpu in gpus.hold.gpus]


def known_study(gpu: str | None) -> StudyRecord:
    return StudyRecord("s", datetime.now(UTC), {} if gpu is None else {"gpu": gpu}, {}, "m", maximise=True)


@pytest.mark.parametrize(("engine", "space"), [(SIMULATED, "qwen13b"), (vllm(), "tiny-cpu")])
def test_a_study_that_needs_no_gpu_never_touches_nvml(opened, monkeypatch, engine, space):
    def touched():
        raise AssertionError("NVML was opened")

    monkeypatch.setattr("optimizer.app.gpus.open_nvml", touched)
    with opened(engine, space=space) as gpus:
        assert gpus == StudyGpus()
        assert (gpus.identity, gpus.facts, gpus.environment) == ({}, {}, {})


def test_a_card_is_leased_while_the_study_runs(opened, nvml):
    with opened() as gpus:
        assert chosen(gpus) == [0]
        assert gpus.identity == {"gpu": "NVIDIA H200"}
        assert gpus.environment == {"CUDA_VISIBLE_DEVICES": card(0).uuid}
        assert gpus.facts == {
            "gpus": [{"name": "NVIDIA H200", "memory_gib": 140.0, "uuid": card(0).uuid}],
            "gpu_driver": "580.1",
        }
        assert gpus.notes == ("GPU 0 (NVIDIA H200) is leased for this study",)
        with opened() as others:
            assert chosen(others) == [1]
            with pytest.raises(HostError, match=r"GPU 1 .* is held by study qwen13b"), opened():
                pass
    with opened() as again:
        assert chosen(again) == [0]
    assert nvml.closed


def test_the_emptier_card_is_preferred(opened, nvml):
    nvml.enters(7000, 40 * GIB, card(0))
    with opened() as gpus:
        assert chosen(gpus) == [1]


def test_the_variable_and_the_space_narrow_the_choice(opened, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with opened() as gpus:
        assert chosen(gpus) == [1]
    with opened(env={"CUDA_VISIBLE_DEVICES": "0"}) as gpus:
        assert chosen(gpus) == [0], "the space's own word counts"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(HostError, match="a GPU is needed, and of none"), opened():
        pass


def test_as_many_cards_as_the_largest_engine_takes(opened):
    with opened(set_flags=("tensor-parallel-size=2",)) as gpus:
        assert chosen(gpus) == [0, 1]
    with pytest.raises(HostError, match="4 GPUs are needed, and of 2"), opened(set_flags=("tensor-parallel-size=4",)):
        pass


def test_unlike_cards_are_not_mixed_in_one_engine(opened, nvml):
    nvml.cards = (card(0, name=L4), card(1), card(2))
    with opened(set_flags=("tensor-parallel-size=2",)) as gpus:
        assert chosen(gpus) == [1, 2]


def test_a_study_that_goes_on_takes_cards_of_its_kind(opened, nvml):
    nvml.cards = (card(0, name=L4), card(1))
    with opened(known=known_study("NVIDIA H200")) as gpus:
        assert chosen(gpus) == [1]
        assert gpus.identity == {"gpu": "NVIDIA H200"}
    with opened(known=known_study("NVIDIA A100")) as gpus:
        assert gpus.identity == {"gpu": L4}, "refused by its identity, where the difference is shown"


def test_a_host_without_a_driver_is_told_what_it_lacks(opened, monkeypatch):
    monkeypatch.setattr("optimizer.app.gpus.open_nvml", lambda: None)
    with pytest.raises(HostError, match="no NVIDIA driver") as caught, opened():
        pass
    assert "cpu" in caught.value.hint
    with opened(vllm("2.11.0+rocm7.1")) as gpus:
        assert gpus.hold is None
        assert "neither leased nor looked at" in gpus.notes[0]


# --- a whole run


class Watcher:
    """Keeps the notices, and lets everything else pass."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def __getattr__(self, name: str):
        return lambda *args, **kwargs: None


class Engines:
    """Stands for guard, launcher and pipeline; no attempt ends in a measurement, for want of a flag."""

    def __init__(self) -> None:
        self.environments: list[dict[str, str]] = []
        self.spares: list[dict[str, str]] = []

    async def start_launcher(self, choice, section, **_):
        self.spares.append(section.env)
        return self

    async def close(self) -> tuple[()]:
        return ()

    async def run(self, job, clock, *, on_launch, on_progress):
        self.environments.append(dict(job.config.env))
        clock.enter(Stage.LAUNCHING)
        clock.end()
        return AttemptOutcome(failure=Failure(FailureKind.INVALID_COMBINATION, Stage.LAUNCHING, Blame.CONFIG, "no"))


@pytest.fixture
def engines(monkeypatch) -> Engines:
    engines = Engines()
    monkeypatch.setattr("optimizer.app.run_study.choose_engine", lambda kind, python: vllm())
    monkeypatch.setattr("optimizer.app.run_study.checked_config", lambda request, engine, notice: study_config(request))
    monkeypatch.setattr("optimizer.app.session.start_launcher", engines.start_launcher)
    monkeypatch.setattr("optimizer.app.run_study.TrialPipeline", lambda launcher, workload, **_: engines)
    return engines


@pytest.fixture
def request_of(tmp_path):
    def make(**options) -> RunRequest:
        slos = ("p99_e2e_ms=800",)  # an absolute one, since no baseline is measured here
        return RunRequest(space="qwen13b", trials=2, slos=slos, storage=str(tmp_path / "s.db"), **options)

    return make


def test_spare_and_engines_get_the_leased_card_and_the_record_names_it(nvml, engines, request_of):
    watcher = Watcher()
    outcome = run_study(request_of(), watcher)
    here = {"CUDA_VISIBLE_DEVICES": card(0).uuid}
    assert engines.spares == [here]
    assert engines.environments == [here, here]
    assert outcome.study.identity["gpu"] == "NVIDIA H200"
    assert outcome.study.host["gpu_driver"] == "580.1"
    assert "GPU 0 (NVIDIA H200) is leased for this study" in watcher.notices
    assert outcome.trials[0].config.env == {}, "which card it was is no part of the setting"
    note = "attempt 1: GPU 0 (NVIDIA H200): 0.0 GiB in use before the launch, 0.0 GiB before the stop, 0.0 GiB 0.0 s"
    assert outcome.trials[0].notes[0].startswith(note)
    assert (outcome.record_folder / "trial-0000" / "attempt-1" / "gpu_memory.json").is_file()


def test_another_kind_of_card_is_another_study(nvml, engines, request_of):
    run_study(request_of(), Watcher())
    nvml.cards = (card(0, name=L4),)
    with pytest.raises(InputError, match='gpu: "NVIDIA H200" -> "NVIDIA L4"'):
        run_study(request_of(), Watcher())


def test_a_study_that_finds_no_free_card_starts_nothing(nvml, engines, request_of, opened):
    with opened(set_flags=("tensor-parallel-size=2",)), pytest.raises(HostError, match="is held by study") as caught:
        run_study(request_of(), Watcher())
    assert caught.value.exit_code == 4
    assert engines.spares == []


def test_a_card_that_stays_busy_pauses_the_study_after_three_attempts(nvml, engines, request_of, monkeypatch):
    """The co-tenant comes after the lease; the study can go on once it is gone."""
    monkeypatch.setattr("optimizer.tuning.gpu_hold._PATIENCE_S", (0.0,))
    watcher = Watcher()
    watcher.study_opened = lambda *args, **kwargs: nvml.enters(7000, 40 * GIB)  # type: ignore[attr-defined]
    with pytest.raises(
        HostError, match=r"3 times in a row; the last: other processes hold 40.0 GiB of GPU 0"
    ) as caught:
        run_study(request_of(), watcher)
    assert "pid 7000" in caught.value.message
    assert engines.environments == []
    nvml.leaves(7000)
    assert len(run_study(request_of(), Watcher()).trials) == 2
