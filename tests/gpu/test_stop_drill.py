"""The drill for a machine with a GPU, played through on the simulated engine and scripted cards."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from optimizer.app.engine_choice import choose_engine
from optimizer.app.engines import start_launcher
from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.core.trial import TrialRole
from optimizer.host.cpus import split_cpus
from optimizer.host.gpu_tenants import processes_of
from optimizer.host.guard import start_ticks
from optimizer.host.leases import lease_gpus
from optimizer.load import Workload
from optimizer.tuning import gpu_hold
from optimizer.tuning.gpu_hold import GpuHold
from tests.gpu.fake_nvml import GIB, FakeNvml, tells
from tests.gpu.stop_drill import WORKLOAD, Drill, run_steps, torch_tenant

TENANT = 2**22 + 1
"""A PID that no process has."""


@pytest.fixture
async def drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Drill]:
    monkeypatch.setenv("AUTOTUNE_SIM_SPEED", "50")
    monkeypatch.setattr(gpu_hold, "_PATIENCE_S", (0.5,))
    monkeypatch.setattr(gpu_hold, "_SETTLE_S", 0.5)
    nvml = FakeNvml()
    hold = GpuHold(
        nvml,
        nvml.cards,
        1,
        take=lambda gpus, count: lease_gpus(gpus, count, study="drill", folder=tmp_path / "leases"),
        tell_ours=tells(),
    )

    @contextlib.asynccontextmanager
    async def tenant(gib: float) -> AsyncIterator[int]:
        nvml.enters(TENANT, int(gib * GIB))
        yield TENANT
        nvml.leaves(TENANT)

    config = study_config(RunRequest(space="tiny-cpu", engine="simulated"))
    engine = choose_engine("simulated", None)
    launcher = await start_launcher(
        engine, config.engine, model=config.model.target, guard_log=tmp_path / "guard.log", split=split_cpus()
    )
    brief = {"warmup": {"requests": 8, "max_s": 5}, "window": {"min_s": 0.3, "max_s": 20, "min_requests": 8}}
    yield Drill(
        hold=hold,
        launcher=launcher,
        config=settings_of(config).resolve(TrialRole.BASELINE, {}).config,
        folder=tmp_path,
        tenant=tenant,
        tenant_gib=24.0,
        small_tenant_gib=3.0,
        start_limit_s=60.0,
        workload=Workload.model_validate({**WORKLOAD.model_dump(), **brief}),
    )
    await launcher.close()
    hold.close()


async def test_every_step_ends_as_it_should(drill: Drill):
    results = await run_steps(drill, ["stop", "busy", "middle"])
    assert results["ok"], results
    stop = results["stop"]
    assert (stop["before_mib"], stop["after_stop_s_and_mib"][-1][1], stop["stop"]["left"]) == ([0], [0], [])
    busy = results["busy"]
    assert busy["with_tenant"]["kind"] == "gpu_busy"
    assert "24.0 GiB of GPU 0" in busy["with_tenant"]["detail"]
    assert f"pid {TENANT}" in busy["with_tenant"]["evidence"][0]
    assert busy["without"]["measured"]
    assert results["middle"]["tenant_pid"] == [TENANT]
    assert "3.0 GiB of GPU 0" in results["middle"]["outcome"]["detail"]


async def test_a_step_that_ends_otherwise_fails_the_drill(drill: Drill):
    """Nobody looks at the card, and the simulated engine has a memory of its own: it is simply measured."""
    results = await run_steps(drill, ["text"])
    assert not results["ok"]
    assert results["text"]["outcome"]["measured"]


async def test_a_tenant_is_no_child_of_ours_and_ends_with_its_block(drill: Drill, tmp_path: Path):
    """With a torch that allocates nothing, since the way in and out is what is looked at."""
    (tmp_path / "torch.py").write_text(
        "uint8 = 0\n"
        "class cuda:\n    synchronize = staticmethod(lambda: None)\n"
        "class Held:\n    zero_ = staticmethod(lambda: None)\n"
        "def empty(size, dtype, device):\n    return Held\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec python3 "$@"\n')
    python.chmod(0o755)
    async with torch_tenant(str(python), drill.hold)(1.0) as pid:
        assert start_ticks(pid) > 0
        assert processes_of("NO_SUCH_MARK", "x")([pid]) == frozenset()
    assert start_ticks(pid) == 0
