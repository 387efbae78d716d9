"""Which program is launched, on which cores, and under which guard."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from optimizer.app.engine_choice import EngineChoice, choose_engine
from optimizer.app.engines import start_launcher, vocabulary_size
from optimizer.app.facts import describe_host, software_versions
from optimizer.app.request import RunRequest, study_config
from optimizer.core.engine_config import EngineConfig
from optimizer.core.errors import HostError
from optimizer.core.record import ProcessIdentity
from optimizer.engine.vllm.installation import VllmInstallation
from optimizer.host.cpus import CpuSplit
from optimizer.host.supervisor import SupervisedProcess, Supervisor

VLLM = EngineChoice("vllm", "0.32.0", VllmInstallation("/engine/python", "0.32.0", "2.11", "3.12"))
SIMULATED = EngineChoice("simulated", "1", None)


class FakeGuard(Supervisor):
    """Takes launches down instead of carrying them out."""

    def __init__(self) -> None:
        self.specs: list = []

    async def launch(self, spec):
        self.specs.append(spec)
        process = SupervisedProcess.__new__(SupervisedProcess)
        process.identity = ProcessIdentity("here", "boot", 1, 1)
        process.exited = asyncio.get_running_loop().create_future()
        return process


@pytest.fixture
def started(monkeypatch):
    """Starts no guard; gives the words it would have been started with, and what it was told to launch."""
    guard = FakeGuard()
    calls: list[dict] = []

    async def start(**arguments):
        calls.append(arguments)
        return guard

    monkeypatch.setattr(Supervisor, "start", start)
    return guard, calls


async def launch(choice, *, log, **section_changes):
    section = study_config(RunRequest(space="tiny-cpu")).engine.model_copy(update=section_changes)
    launcher = await start_launcher(
        choice, section, model="/m", guard_log=log, split=CpuSplit((0, 1, 2), (3,)), port_range=None
    )
    return await launcher.launch(EngineConfig("vllm", "/m", {"max-num-seqs": 8}), log=log, marker="s/0/1")


async def test_a_warm_spare_forks_the_engine_and_keeps_no_secret(started, tmp_path):
    guard, calls = started
    engine = await launch(VLLM, log=tmp_path / "log", warm_start=True)
    assert calls[0]["command"][0] == "/engine/python"
    assert "VLLM_API_KEY" not in calls[0]["env"]
    assert calls[0]["env"]["OMP_NUM_THREADS"] == "3"
    (spec,) = guard.specs
    assert spec.argv[0].startswith("--"), "the server's arguments alone"
    assert engine.argv[:3] == ("/engine/python", "-m", "vllm.entrypoints.openai.api_server"), "as a person would type"


async def test_a_cold_engine_is_a_program_of_its_own(started, tmp_path):
    guard, calls = started
    await launch(VLLM, log=tmp_path / "log", warm_start=False)
    assert "command" not in calls[0]
    assert guard.specs[0].argv[:3] == ["/engine/python", "-m", "vllm.entrypoints.openai.api_server"]


async def test_the_simulated_engine_runs_on_this_python_and_is_never_warm(started, tmp_path):
    guard, calls = started
    await launch(SIMULATED, log=tmp_path / "log", warm_start=True)
    assert "command" not in calls[0]
    assert guard.specs[0].argv[:3] == [sys.executable, "-m", "optimizer.engine.simulated"]


@pytest.mark.parametrize(("pinned", "cores"), [(True, (0, 1, 2)), (False, ())])
async def test_a_pinned_engine_gets_the_engines_cores(started, tmp_path, pinned, cores):
    guard, _ = started
    await launch(VLLM, log=tmp_path / "log", pin_cpus=pinned)
    assert tuple(guard.specs[0].cpus) == cores


@pytest.mark.parametrize(("device", "threads"), [("cpu", "3"), ("gpu", None)])
async def test_threads_are_set_for_an_engine_on_the_cpu_alone(started, tmp_path, monkeypatch, device, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    guard, _ = started
    await launch(VLLM, log=tmp_path / "log", device=device)
    assert guard.specs[0].env.get("OMP_NUM_THREADS") == threads


def test_the_simulated_engine_needs_no_vllm():
    choice = choose_engine("simulated", "/no/such/python")
    assert (choice, choice.python) == (SIMULATED, sys.executable)


def test_a_python_that_does_not_exist_is_the_hosts_fault():
    with pytest.raises(HostError, match="/no/such/python"):
        choose_engine("vllm", "/no/such/python")


def test_the_vocabulary_is_read_from_the_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 1234}))
    assert vocabulary_size(str(tmp_path)) == 1234


@pytest.mark.parametrize("content", [None, "{}", '{"vocab_size": "many"}'])
def test_an_unknown_vocabulary_is_that_of_bytes(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert vocabulary_size(str(tmp_path)) == 256


def test_the_host_is_described_without_what_changes():
    assert describe_host() == describe_host()
    facts = describe_host()
    assert facts["cores"] >= facts["allowed_cores"] >= 1
    assert facts["memory_gib"] > 0
    assert facts["cpu"]


def test_versions_are_those_of_what_measures():
    assert software_versions(None).keys() >= {"optuna", "aiohttp", "numpy", "sqlalchemy", "python", "vllm-autotune"}
    assert "vllm" not in software_versions(None)
    with_engine = software_versions(VLLM.vllm)
    assert (with_engine["vllm"], with_engine["torch"], with_engine["engine-python"]) == ("0.32.0", "2.11", "3.12")


def test_versions_and_host_are_text_and_numbers_for_the_record():
    facts = [software_versions(None), describe_host()]
    assert json.loads(json.dumps(facts)) == facts
