"""A real vLLM that refuses to start, in every way a study meets: what it says is told by kind, blame and numbers."""

from __future__ import annotations

import math
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio

from optimizer.config import resolve_model
from optimizer.core.engine_config import EngineConfig, FlagValue
from optimizer.core.failure import Blame, Failure, FailureKind, MemoryPhase
from optimizer.core.trial import Stage
from optimizer.engine import launch as launch_module
from optimizer.engine.launch import (
    EngineFailed,
    EngineLauncher,
    EngineProgram,
    warm_spare_command,
    warm_spare_environment,
)
from optimizer.engine.vllm.violations import ALL_MEMORY_SHARE
from optimizer.host.cpus import split_cpus
from optimizer.host.memory import engine_memory_bytes
from optimizer.host.supervisor import Supervisor

SPARE_LIMIT_S = 300.0
START_LIMIT_S = 120.0
GIB = 1024**3
MOST_HELD_GIB = 2.0
"""That a test itself takes of the host's memory."""
ENV = {"HF_HUB_OFFLINE": "1"}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(SPARE_LIMIT_S + START_LIMIT_S),
    pytest.mark.asyncio(loop_scope="module"),
]

Refused = Callable[..., Awaitable[Failure]]


def share(gib: float) -> float:
    """As a fraction of the memory that vLLM counts."""
    return gib * GIB / engine_memory_bytes()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def launcher(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineLauncher]:
    """Forks each engine from one process that has imported vLLM."""
    cpus = split_cpus().engine
    supervisor = await Supervisor.start(
        log=tmp_path_factory.mktemp("guard") / "guard.log",
        command=warm_spare_command(sys.executable),
        env=warm_spare_environment(ENV, len(cpus)),
        limit_s=SPARE_LIMIT_S,
    )
    program = EngineProgram(head=(), display_head=("vllm", "serve"), cpus=cpus, cpu_threads=len(cpus))
    running = EngineLauncher(supervisor, program)
    yield running
    await running.close()


@pytest.fixture
def refused(launcher: EngineLauncher, tmp_path: Path) -> Refused:
    """Launches vLLM with some flags and returns why it does not start; nothing of it is left."""

    numbers = count()

    async def launching(**flags: FlagValue) -> Failure:
        flags = {
            "load-format": "dummy",
            "enforce-eager": True,
            "dtype": "float32",
            "max-model-len": 2048,
            "gpu-memory-utilization": share(1.2),
            **{name.replace("_", "-"): value for name, value in flags.items()},
        }
        config = EngineConfig("vllm", resolve_model("tiny-kv", origin="test").target, flags, ENV)
        log = tmp_path / f"engine-{next(numbers)}.log"
        engine = await launcher.launch(config, log=log, marker="failures/0/1")
        try:
            with pytest.raises(EngineFailed) as failed:
                await engine.wait_ready(limit_s=START_LIMIT_S)
        finally:
            assert (await engine.stop()).left == ()
        failure = failed.value.failure
        assert failure.stage is Stage.LAUNCHING
        assert failure.evidence
        return failure

    return launching


async def test_a_flag_that_does_not_exist(refused):
    failure = await refused(invented_flag=3)
    assert (failure.kind, failure.blame, failure.exit_code) == (FailureKind.REJECTED_FLAG, Blame.CONFIG, 2)
    assert "--invented-flag" in failure.detail


async def test_several_api_servers_with_a_package_whose_command_line_does_not_run(refused):
    failure = await refused(api_server_count=2)
    assert (failure.kind, failure.blame) == (FailureKind.REJECTED_FLAG, Blame.CONFIG)
    assert "--api-server-count" in failure.detail


async def test_a_choice_that_does_not_exist(refused):
    failure = await refused(kv_cache_dtype="fp9")
    assert (failure.kind, failure.blame, failure.exit_code) == (FailureKind.REJECTED_FLAG, Blame.CONFIG, 2)
    assert "--kv-cache-dtype" in failure.detail
    assert "fp9" in failure.detail


async def test_a_value_out_of_range(refused):
    failure = await refused(gpu_memory_utilization=1.5)
    assert (failure.kind, failure.blame, failure.exit_code) == (FailureKind.REJECTED_FLAG, Blame.CONFIG, 1)
    assert "gpu_memory_utilization" in failure.detail


async def test_more_sequences_than_batched_tokens(refused):
    failure = await refused(max_num_seqs=64, max_num_batched_tokens=32)
    assert (failure.kind, failure.blame, failure.exit_code) == (FailureKind.INVALID_COMBINATION, Blame.CONFIG, 1)
    assert failure.facts == {"max_num_batched_tokens": 32, "max_num_seqs": 64}


async def test_a_context_longer_than_the_models(refused):
    failure = await refused(max_model_len=10_000_000)
    assert (failure.kind, failure.blame) == (FailureKind.INVALID_COMBINATION, Blame.CONFIG)
    assert failure.facts["max_model_len"] == 10_000_000
    assert failure.facts["max_position_embeddings"] < 10_000_000


async def test_a_pool_too_small_for_one_request(refused):
    failure = await refused(num_gpu_blocks_override=4)
    facts = failure.facts
    assert (failure.kind, failure.blame, failure.exit_code) == (FailureKind.KV_CACHE_TOO_SMALL, Blame.CONFIG, 1)
    assert facts["max_model_len"] == 2048
    assert 0 < facts["estimated_max_model_len"] < 2048
    assert facts["short_gib"] == pytest.approx(facts["needed_gib"] - facts["available_gib"])
    assert failure.violation == pytest.approx(math.log(facts["needed_gib"] / facts["available_gib"]))


async def test_memory_that_the_engine_itself_uses_up(refused):
    failure = await refused(gpu_memory_utilization=share(0.2))
    assert (failure.kind, failure.blame) == (FailureKind.KV_CACHE_TOO_SMALL, Blame.CONFIG)
    assert failure.facts["left_for_kv_gib"] < 0
    assert failure.facts["engine_memory_gib"] == pytest.approx(0.2, abs=0.02)
    assert failure.violation is not None
    assert failure.violation > math.log(100)


async def test_more_memory_than_a_host_ever_gives_and_more_than_is_free_now(refused):
    """All of it is the setting's fault. Between what is free and what an idle host could give, others hold it."""
    failure = await refused(gpu_memory_utilization=1.0)
    facts = failure.facts
    assert (failure.kind, failure.blame) == (FailureKind.OUT_OF_MEMORY, Blame.CONFIG)
    assert facts["needed_gib"] == facts["total_gib"]
    assert facts["short_gib"] == pytest.approx(facts["needed_gib"] - facts["available_gib"])
    # On an idle host nobody else does; and what is free may grow a little until the next launch.
    spare_gib = facts["available_gib"] - (ALL_MEMORY_SHARE - 0.05) * facts["total_gib"]
    held = b"\1" * int(min(max(spare_gib, 0.0), MOST_HELD_GIB) * GIB)
    free = (facts["available_gib"] - len(held) / GIB) / facts["total_gib"]
    if free > ALL_MEMORY_SHARE - 0.01:
        pytest.skip(f"{free:.1%} of this host's memory are free: nobody holds any")
    wanted = (free + ALL_MEMORY_SHARE) / 2
    failure = await refused(gpu_memory_utilization=wanted)
    del held
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.HOST_FAULT, Blame.HOST, True)
    assert failure.facts["needed_gib"] == pytest.approx(wanted * failure.facts["total_gib"], abs=0.02)
    assert failure.facts["short_gib"] > 0


async def test_more_kv_cache_than_the_host_has_memory(refused):
    failure = await refused(kv_cache_memory_bytes=400 * GIB)
    assert (failure.kind, failure.blame) == (FailureKind.OUT_OF_MEMORY, Blame.CONFIG)
    assert failure.phase is MemoryPhase.KV_CACHE
    assert failure.facts["needed_gib"] == 400
    assert failure.violation is not None
    assert failure.violation > 0


async def test_a_port_that_another_process_holds(refused, monkeypatch):
    with socket.socket() as occupant:
        occupant.bind(("127.0.0.1", 0))
        occupant.listen()
        monkeypatch.setattr(launch_module, "free_port", lambda _range: occupant.getsockname()[1])
        failure = await refused()
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.PORT_TAKEN, Blame.HOST, True)
