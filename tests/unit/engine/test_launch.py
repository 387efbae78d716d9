"""What is started where; the processes themselves are seen in tests/integration/supervision."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine.launch import EngineFailed, warm_spare_command, warm_spare_environment


def test_the_warm_spare_is_a_script_that_is_told_where_the_guard_lies():
    python, script, guard = warm_spare_command("/opt/engine env/bin/python")
    assert python == "/opt/engine env/bin/python"
    assert Path(script).name == "warm_spare.py"
    assert Path(guard).name == "guard.py"
    assert Path(script).is_file()
    assert Path(guard).is_file()


@pytest.mark.parametrize(("threads", "expected"), [(None, {}), (3, {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"})])
def test_the_warm_spare_has_what_engines_have_but_no_key(monkeypatch, threads, expected):
    for name in [name for name in os.environ if name.endswith("NUM_THREADS")]:
        monkeypatch.delenv(name, raising=False)
    env = warm_spare_environment({"HF_HUB_OFFLINE": "1"}, threads)
    assert env["HF_HUB_OFFLINE"] == "1"
    assert "VLLM_API_KEY" not in env
    assert {name: value for name, value in env.items() if name.endswith("NUM_THREADS")} == expected


def test_a_key_of_the_users_own_does_not_reach_the_warm_spare(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "the-users")
    assert "the-users" not in warm_spare_environment({}, None).values()


def test_an_engines_failure_reads_as_its_detail():
    failure = Failure(FailureKind.ENGINE_CRASH, Stage.MEASURING, Blame.CONFIG, "EngineCore died")
    assert str(EngineFailed(failure)) == "EngineCore died"
    assert EngineFailed(failure).failure is failure
