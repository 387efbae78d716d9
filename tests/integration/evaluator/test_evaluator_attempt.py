"""One attempt by an external evaluator: a real process under a real guard, and what becomes of it however it goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from optimizer.core.engine_config import EngineConfig
from optimizer.core.errors import HostError
from optimizer.core.failure import Blame, FailureKind
from optimizer.core.record import StageTiming
from optimizer.core.trial import Stage, TrialRole
from optimizer.host.processes import our_processes
from optimizer.host.supervisor import Supervisor
from optimizer.load import Workload
from optimizer.tuning.evaluator_output import REQUEST, STDERR, STDOUT
from optimizer.tuning.evaluator_pipeline import EvaluatorPipeline
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.trial_pipeline import AttemptOutcome, TrialJob

OK = json.dumps({"status": "ok", "metrics": {"output_tokens_per_s": 5.0}})
FAILED = json.dumps({"status": "failed", "kind": "engine_crash", "blame": "config", "detail": "it fell"})
MARKER = "evaluated/2/1"
WORKLOAD = Workload.model_validate(
    {
        "name": "w",
        "arrivals": {"kind": "closed_loop", "in_flight": 2},
        "prompt_tokens": 8,
        "output_tokens": 8,
        "warmup": {"requests": 1, "max_s": 1},
        "window": {"min_s": 1, "max_s": 2, "min_requests": 1},
    }
)
HANGS_WITH_CHILDREN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("up", file=sys.stderr, flush=True)
time.sleep(600)
"""


class Bench:
    """Makes attempts by one-off programs."""

    def __init__(self, supervisor: Supervisor, folder: Path) -> None:
        self.supervisor = supervisor
        self.folder = folder
        self.stages: tuple[StageTiming, ...] = ()

    async def run(self, *words: str, timeout_s: float = 30.0, limit_bytes: int = 10_000) -> AttemptOutcome:
        pipeline = EvaluatorPipeline(
            self.supervisor,
            words,
            timeout_s=timeout_s,
            workload=WORKLOAD,
            wanted=("output_tokens_per_s",),
            output_limit_bytes=limit_bytes,
        )
        config = EngineConfig("external", "org/model", {"max-num-seqs": 8, "enable-prefix-caching": False}, {"A": "1"})
        job = TrialJob(
            MARKER,
            config,
            None,
            self.folder,
            study_seed=7,
            content_seed=8,
            start_limit_s=1.0,
            number=2,
            attempt=1,
            role=TrialRole.SEARCH,
            params={"max-num-seqs": 8},
        )
        clock = StageClock(self._keep)
        return await pipeline.run(job, clock, on_launch=_not_called, on_progress=_not_called)

    async def python(self, script: str, **more: Any) -> AttemptOutcome:
        return await self.run(sys.executable, "-c", script, **more)

    async def shell(self, script: str, **more: Any) -> AttemptOutcome:
        return await self.run("sh", "-c", script, **more)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def _keep(self, stages: tuple[StageTiming, ...]) -> None:
        self.stages = stages


def _not_called(_: Any) -> None:
    raise AssertionError("there is no engine of ours")


def ours() -> list[int]:
    return [process.pid for process in our_processes() if process.trial == MARKER]


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    supervisor = await Supervisor.start(log=tmp_path / "guard.log")
    folder = tmp_path / "attempt"
    folder.mkdir()
    yield Bench(supervisor, folder)
    await supervisor.close()
    assert ours() == []
    assert (tmp_path / "guard.log").read_text() == ""


async def test_it_gets_the_setting_and_its_answer_counts(bench):
    outcome = await bench.python(
        "import json, sys; r = json.load(sys.stdin); print(json.dumps(r)); print('for people', file=sys.stderr);"
        "print(json.dumps({'status': 'ok', 'metrics': {'output_tokens_per_s': r['flags']['max-num-seqs']}})); print()"
    )
    assert outcome.failure is None
    assert outcome.measurement is None
    assert outcome.reported.values == {"output_tokens_per_s": 8.0}
    told = json.loads(bench.text(STDOUT).splitlines()[0])
    assert told == json.loads(bench.text(REQUEST))
    assert told == {
        "trial": 2,
        "params": {"max-num-seqs": 8},
        "flags": {"max-num-seqs": 8, "enable-prefix-caching": False},
        "workload": WORKLOAD.model_dump(mode="json"),
        "seed": 7,
        "content_seed": 8,
        "study": "evaluated",
        "attempt": 1,
        "role": "search",
        "model": "org/model",
        "env": {"A": "1"},
        "argv": ["--no-enable-prefix-caching", "--max-num-seqs", "8"],
        "wanted": ["output_tokens_per_s"],
    }
    assert bench.text(STDERR) == "for people\n"
    assert [timing.stage for timing in bench.stages] == [Stage.MEASURING, Stage.STOPPING]
    assert all(timing.duration_s is not None for timing in bench.stages)


async def test_stdin_ends(bench):
    outcome = await bench.shell(f"cat > /dev/null; echo '{OK}'")
    assert outcome.reported is not None


async def test_a_failed_counts_whatever_the_exit_status(bench):
    outcome = await bench.shell(f"echo one >&2; echo two >&2; echo '{FAILED}'; exit 9")
    failure = outcome.failure
    assert (failure.kind, failure.blame, failure.detail) == (FailureKind.ENGINE_CRASH, Blame.CONFIG, "it fell")
    assert (failure.exit_code, failure.evidence, failure.retryable) == (9, ("two", "one"), False)


@pytest.mark.parametrize(
    ("script", "detail", "evidence"),
    [
        (f"echo '{OK}'; echo why >&2; exit 3", "the evaluator died: exit status 3", ("why",)),
        (f"echo '{OK}'; kill -9 $$", "the evaluator died: signal SIGKILL", (OK,)),
        ("echo no such pod; exit 1", "the evaluator died: exit status 1", ("no such pod",)),
        ("true", "gave no answer: it printed nothing on stdout", ()),
        ("echo; echo '   '", "gave no answer: it printed nothing on stdout", ()),
        (f"echo '{OK}'; echo done", "gave no answer: the last line on stdout: it is no JSON", ("done", OK)),
        (f"echo '{OK}' >&2", "gave no answer: it printed nothing on stdout", (OK,)),
        (r"printf '\377\376{\000'", "it is no JSON", None),
        ("""echo '{"status": "ok", "metrics": {}}'""", "output_tokens_per_s has no value", None),
        ("""echo '{"status": "ok", "metrics": {"output_tokens_per_s": NaN}}'""", "finite", None),
    ],
)
async def test_death_and_nonsense_are_the_hosts_fault_with_evidence(bench, script, detail, evidence):
    failure = (await bench.shell(script)).failure
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.HOST_FAULT, Blame.HOST, True)
    assert detail in failure.detail
    if evidence is not None:
        assert failure.evidence == evidence


async def test_one_that_hangs_is_ended_with_its_children_in_other_sessions(bench, monkeypatch):
    monkeypatch.setattr("optimizer.tuning.evaluator_pipeline._STOP_GRACE_S", 0.3)
    outcome = await bench.python(HANGS_WITH_CHILDREN, timeout_s=5.0)
    failure = outcome.failure
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.LOAD_TIMEOUT, Blame.CONFIG, True)
    assert failure.detail == "the evaluator had not ended after 5 s"
    assert failure.evidence == ("up",)
    assert len(outcome.stop.killed) >= 2
    assert ours() == []


async def test_what_it_leaves_behind_in_the_background_is_ended(bench):
    outcome = await bench.shell(f"setsid sleep 600 & echo '{OK}'")
    assert outcome.reported is not None
    assert ours() == []


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_one_that_prints_without_end_is_ended_and_cut(bench, stream):
    failure = (await bench.shell(f"yes >&{1 if stream == 'stdout' else 2}")).failure
    assert failure.detail.endswith(f"MiB on {stream}")
    assert failure.blame is Blame.HOST
    assert sum((bench.folder / name).stat().st_size for name in (STDOUT, STDERR)) == 10_000


async def test_one_that_printed_too_much_and_ended_well_has_not_answered(bench):
    failure = (await bench.shell(f"head -c 20000 /dev/zero; echo; echo '{OK}'")).failure
    assert "printed more than" in failure.detail


async def test_one_that_cannot_be_started_ends_the_run_and_says_what_to_do(bench):
    script = bench.folder / "no-interpreter"
    script.write_text("print(1)\n")
    script.chmod(0o700)
    with pytest.raises(HostError, match=r"the evaluator '.*no-interpreter' cannot be started") as caught:
        await bench.run(str(script))
    assert "#!" in caught.value.hint


async def test_an_interruption_leaves_no_process(bench, monkeypatch):
    monkeypatch.setattr("optimizer.tuning.evaluator_pipeline._STOP_GRACE_S", 0.3)
    task = asyncio.create_task(bench.python(HANGS_WITH_CHILDREN))
    async with asyncio.timeout(30):
        while not (bench.folder / STDERR).is_file() or "up" not in bench.text(STDERR):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert ours() != []
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert ours() == []
    assert bench.stages[-1].duration_s is not None
