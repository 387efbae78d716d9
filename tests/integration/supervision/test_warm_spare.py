"""The guard that forks engines from itself, with a `vllm` package that only pretends: a simulated engine behind it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from optimizer.core.errors import HostError
from optimizer.engine.launch import warm_spare_command, warm_spare_environment
from optimizer.host.processes import identity_of, is_alive
from optimizer.host.supervisor import Supervisor
from tests.integration.supervision.helpers import LIMIT_S, Launch, family, gone, launching, logged

SERVER = """
import sys
from vllm.utils.system_utils import get_mp_context

if __name__ == "__main__":
    from optimizer.engine.simulated.__main__ import main
    print("context", get_mp_context().get_start_method(), "preloaded by", sys.modules["vllm.preloaded"].PID, flush=True)
    sys.exit(main())
"""
FILES = {
    "entrypoints/openai/api_server.py": SERVER,
    "entrypoints/cli/main.py": SERVER.replace('"context"', '"command line, context"'),
    "preloaded.py": "import os\nPID = os.getpid()\n",
    "v1/engine/core.py": "import vllm.preloaded\n",
    "v1/executor/multiproc_executor.py": "from vllm.utils.system_utils import get_mp_context\n",
    "v1/worker/cpu_worker.py": "",
    "v1/attention/backends/__init__.py": "",
    "platforms/__init__.py": "class current_platform:\n    is_cpu = staticmethod(lambda: True)\n",
    "utils/system_utils.py": "import multiprocessing\n\n\ndef get_mp_context():\n"
    '    return multiprocessing.get_context("spawn")\n',
}


@pytest.fixture
def pretended(tmp_path: Path) -> Path:
    """A folder with the pretended package."""
    root = tmp_path / "site"
    for name, text in FILES.items():
        file = root / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for folder in (root / "vllm", *(path for path in (root / "vllm").rglob("*") if path.is_dir())):
        (folder / "__init__.py").touch()
    return root


@pytest_asyncio.fixture
async def spare(pretended: Path, guard_log: Path) -> AsyncIterator[Supervisor]:
    env = warm_spare_environment({"PYTHONPATH": str(pretended)}, None)
    running = await Supervisor.start(log=guard_log, command=warm_spare_command(sys.executable), env=env)
    yield running
    await running.close()


@pytest.fixture
def warm_launch(spare: Supervisor, tmp_path: Path) -> Launch:
    return launching(spare, tmp_path, head=())


async def test_engines_are_forked_from_what_was_imported_and_stop_without_a_trace(warm_launch, spare):
    for number in range(2):
        engine = await warm_launch(ONLY_OF_THIS_LAUNCH=str(number))
        await engine.wait_ready(limit_s=LIMIT_S)
        members = family(engine.pid)
        process = psutil.Process(engine.pid)
        assert process.ppid() == spare._process.pid
        assert os.getsid(engine.pid) == engine.pid
        assert f"context fork preloaded by {spare._process.pid}\n" in engine.log_text()
        report = await engine.stop()
        assert (report.exit_code, report.killed, report.left) == (0, (), ())
        assert not any(is_alive(member) for member in members)


async def test_several_api_servers_are_started_by_vllms_command_line(warm_launch):
    engine = await warm_launch(flags={"api-server-count": 3})
    await engine.wait_ready(limit_s=LIMIT_S)
    assert "command line, context fork preloaded by" in engine.log_text()
    assert engine.log_text().count("Application startup complete") == 3
    await engine.stop()


async def test_each_engine_obeys_the_environment_of_its_own_launch(warm_launch, spare):
    assert "VLLM_API_KEY" not in psutil.Process(spare._process.pid).environ()
    engine = await warm_launch(["never_ready"])
    await logged(engine.log, "Initializing a V1 LLM engine")
    await engine.stop()
    engine = await warm_launch()
    await engine.wait_ready(limit_s=LIMIT_S)
    await engine.stop()


@pytest.mark.parametrize(("flags", "code"), [({"bogus": 1}, 2), ({"max-num-seqs": 9, "max-num-batched-tokens": 3}, 1)])
async def test_the_exit_code_of_a_forked_engine_is_its_own(warm_launch, flags, code):
    engine = await warm_launch(flags=flags)
    assert await engine.ends_within(LIMIT_S)
    assert (await engine.stop()).exit_code == code


async def test_an_engine_holds_none_of_the_guards_pipes(warm_launch, spare, guard_log):
    engine = await warm_launch(["ignore_sigterm"])
    await engine.wait_ready(limit_s=LIMIT_S)
    members = family(engine.pid)
    psutil.Process(spare._process.pid).kill()
    assert await engine.ends_within(LIMIT_S), "the optimizer does not see that its guard is gone"
    with pytest.raises(HostError, match="guard"):
        await engine.stop()
    assert await spare.close() == (), "deaf to SIGTERM, and without a guard, it is ended all the same"
    assert not any(is_alive(member) for member in members)


async def test_a_spare_that_is_still_importing_dies_with_its_optimizer(pretended, tmp_path):
    marker = tmp_path / "importing"
    (pretended / "vllm/v1/engine/core.py").write_text(
        f"import pathlib, time\npathlib.Path({str(marker)!r}).touch()\ntime.sleep(600)\n"
    )
    script = (
        "import asyncio, os, sys\nfrom pathlib import Path\nfrom optimizer.host.supervisor import Supervisor\n"
        "asyncio.run(Supervisor.start(log=Path(sys.argv[1]), command=sys.argv[2:], limit_s=600))\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "guard.log"), *warm_spare_command(sys.executable)]
    env = warm_spare_environment({"PYTHONPATH": str(pretended)}, None)
    optimizer = await asyncio.create_subprocess_exec(*words, env=env)
    async with asyncio.timeout(LIMIT_S):
        while not marker.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    (spare,) = [identity_of(child.pid) for child in psutil.Process(optimizer.pid).children()]
    optimizer.kill()
    await optimizer.wait()
    await gone([spare])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage: warm_spare.py GUARD_PY"),
        (["/absent/guard.py"], "cannot load the guard from /absent/guard.py"),
        (["/dev/null"], "cannot load the guard from /dev/null"),
    ],
)
def test_a_wrong_guard_is_said_in_one_line(arguments, message):
    python, script, _ = warm_spare_command(sys.executable)
    done = subprocess.run([python, script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1


async def test_a_python_without_vllm_is_reported_with_the_log(tmp_path):
    log = tmp_path / "guard.log"
    python, *words = warm_spare_command(sys.executable)
    with pytest.raises(HostError, match="ended with exit code 1") as refused:
        await Supervisor.start(log=log, command=[python, "-S", *words])
    assert str(log) in str(refused.value.hint)
    assert "No module named 'vllm'" in log.read_text()
