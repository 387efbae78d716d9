"""What an engine finds in its environment."""

from __future__ import annotations

import pytest

from optimizer.core.engine_config import EngineConfig
from optimizer.engine.vllm.argv import server_arguments
from optimizer.engine.vllm.environment import engine_environment


def environment(cpu_threads: int | None = None, **space_env: str) -> dict[str, str]:
    return engine_environment(space_env, api_key="k-123", cpu_threads=cpu_threads, marker="study/3/1")


def test_the_key_stands_in_the_environment_alone():
    assert environment()["VLLM_API_KEY"] == "k-123"
    assert [name for name, value in environment().items() if "k-123" in value] == ["VLLM_API_KEY"]
    config = EngineConfig("vllm", "m", {}, {"VLLM_API_KEY": "k-123"})
    assert not any("k-123" in word for word in server_arguments(config, port=1, served_model_name="n"))


def test_a_space_does_not_take_the_key_the_marker_or_dev_mode_away():
    env = environment(VLLM_API_KEY="other", AUTOTUNE_TRIAL="other", VLLM_SERVER_DEV_MODE="0", SPT_NOENV="0")
    assert (env["VLLM_API_KEY"], env["AUTOTUNE_TRIAL"], env["VLLM_SERVER_DEV_MODE"], env["SPT_NOENV"]) == (
        *("k-123", "study/3/1", "1", "1"),
    )


def test_a_space_wins_over_what_is_inherited(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    env = environment(HF_HUB_OFFLINE="1")
    assert (env["HF_HUB_OFFLINE"], env["HTTP_PROXY"]) == ("1", "http://proxy")


@pytest.mark.parametrize("threads", [1, 7])
def test_a_cpu_engine_gets_its_threads_and_no_binding_of_vllms_own(threads):
    env = environment(cpu_threads=threads)
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == str(threads)
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_a_gpu_engine_keeps_openmp_as_it_is(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND"):
        monkeypatch.delenv(name, raising=False)
    env = environment()
    assert not {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND"} & set(env)
