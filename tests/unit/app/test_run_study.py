"""`run` as a use case: real space, store, search and runner; only the engine is invented."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from optimizer.app.engine_choice import EngineChoice
from optimizer.app.request import RunRequest
from optimizer.app.run_study import run_study
from optimizer.core.errors import HostError, InputError, Interrupted
from optimizer.core.measurement import EngineMetrics, HostUsage, LoadResult, Measurement
from optimizer.core.trial import Stage
from optimizer.host.guard import Seen
from optimizer.storage import open_store
from optimizer.tuning.trial_pipeline import AttemptOutcome

N = 120


def measurement(e2e_s: float = 0.5) -> Measurement:
    at_s = np.linspace(0.0, 9.0, N)
    load = LoadResult(
        window_start_s=0.0,
        window_s=10.0,
        scheduled_s=at_s,
        sent_s=at_s,
        first_token_s=at_s + e2e_s / 4,
        last_token_s=at_s + e2e_s,
        prompt_tokens=np.full(N, 32),
        output_tokens=np.full(N, 8),
        errors=(None,) * N,
        itl_s=np.full(N, 0.01),
        window_output_tokens=960,
        window_requests=N,
    )
    return Measurement(load, EngineMetrics(), HostUsage())


@dataclass
class Engines:
    """The engines of a run: what they were started with, and what an attempt does."""

    attempt: Callable[[], Any] = lambda: None
    splits: list[Any] = field(default_factory=list)
    ledgers: list[Any] = field(default_factory=list)
    affinity: list[set[int]] = field(default_factory=list)
    markers: list[str] = field(default_factory=list)
    up: int = 0
    closed: int = 0
    survivors: tuple[Seen, ...] = ()

    async def start_launcher(self, choice, section, *, split, ledger, **_):
        self.splits.append(split)
        self.ledgers.append(ledger)
        return self

    async def close(self) -> tuple[Seen, ...]:
        self.closed += 1
        return self.survivors

    async def run(self, job, clock, *, on_launch, on_progress):
        self.markers.append(job.marker)
        self.affinity.append(set(os.sched_getaffinity(0)))
        clock.enter(Stage.LAUNCHING)
        self.up += 1
        try:
            on_launch(("python", "-m", "server"))
            result = self.attempt()
            if asyncio.iscoroutine(result):
                await result
        finally:
            self.up -= 1
            clock.end()
        return AttemptOutcome(measurement())


class Watcher:
    """Keeps the notices, and lets everything else pass."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


@pytest.fixture
def engines(monkeypatch) -> Engines:
    engines = Engines()
    monkeypatch.setattr("optimizer.app.session.start_launcher", engines.start_launcher)
    monkeypatch.setattr("optimizer.app.run_study.TrialPipeline", lambda launcher, workload, **_: engines)
    return engines


@pytest.fixture
def request_of(tmp_path):
    """Makes requests for the same study."""

    def make(**options) -> RunRequest:
        plain: dict[str, Any] = {"space": "tiny-cpu", "engine": "simulated", "trials": 3}
        return RunRequest(**(plain | {"storage": str(tmp_path / "s.db")} | options))

    return make


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


def states(request: RunRequest) -> list[str]:
    with open_store(request.storage, must_exist=True) as store:
        return [trial.state.value for trial in store.trials("tiny-cpu")]


def test_a_study_runs_and_says_how_it_ended(engines, request_of, watcher, tmp_path):
    outcome = run_study(request_of(), watcher)
    assert (outcome.ended, outcome.total_trials, len(outcome.trials)) == ("trials", 3, 3)
    assert outcome.record_folder == tmp_path / "tiny-cpu"
    assert outcome.storage_display == f"sqlite:///{tmp_path}/s.db"
    assert outcome.study.identity["engine_version"] == "1"
    assert outcome.study.identity["measurement_protocol"] == 4
    assert outcome.study.objective == "output_tokens_per_s"
    assert (engines.closed, engines.up) == (1, 0)
    assert engines.markers == ["tiny-cpu/0/1", "tiny-cpu/1/1", "tiny-cpu/2/1"]


def test_the_same_command_goes_on(engines, request_of, watcher):
    run_study(request_of(), watcher)
    first = list(watcher.notices)
    assert any("GiB" in notice for notice in first)
    outcome = run_study(request_of(trials=5), watcher)
    assert len(outcome.trials) == 5
    sampler = "sampler gp: Gaussian processes over objective, limits and crashes"
    assert watcher.notices == [*first, sampler], "remarks about the study's configuration are made once"
    assert sampler in first


def test_a_spent_time_budget_ends_well(engines, request_of, watcher):
    outcome = run_study(request_of(time_budget_s=1.0), watcher)
    assert (outcome.ended, outcome.trials) == ("time_budget", [])


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"slos": ("p99_e2e_ms=800",)}, 'slos: ["p95_e2e<=1x"] -> ["p99_e2e_ms<=800"]'),
        ({"set_flags": ("block-size=16",)}, "engine.flags.block-size: (absent) -> 16"),
        ({"objective": "goodput"}, 'objective: "throughput" -> "goodput"'),
    ],
)
def test_a_changed_configuration_is_refused_with_the_difference(engines, request_of, watcher, changed, line):
    run_study(request_of(trials=2), watcher)
    with pytest.raises(InputError) as caught:
        run_study(request_of(**changed), watcher)
    assert f"\n  {line}" in caught.value.message
    assert "--study" in caught.value.hint
    assert caught.value.exit_code == 2
    assert len(engines.markers) == 2, "nothing was started"
    run_study(request_of(study="another", **changed, trials=2), watcher)


def test_another_version_of_the_engine_is_another_study(engines, request_of, watcher, monkeypatch):
    run_study(request_of(trials=2), watcher)
    newer = EngineChoice("simulated", "2", None)
    monkeypatch.setattr("optimizer.app.run_study.choose_engine", lambda kind, python: newer)
    with pytest.raises(InputError, match='engine_version: "1" -> "2"'):
        run_study(request_of(), watcher)


def test_a_study_that_another_process_runs_is_left_alone(engines, request_of, watcher, tmp_path):
    run_study(request_of(trials=2), watcher)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from optimizer.host.files import exclusive_lock; from pathlib import Path\n"
            "with exclusive_lock(Path(sys.argv[1]), what='it'):\n    print('held', flush=True); sys.stdin.read()",
            str(tmp_path / "tiny-cpu" / "lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(HostError, match=rf"study tiny-cpu is being run by another process \(pid {holder.pid}\)"):
            run_study(request_of(), watcher)
        holder.stdin.close()
    assert holder.returncode == 0
    assert len(run_study(request_of(), watcher).trials) == 3, "the lock went with its holder"


def test_rules_without_a_setting_start_nothing(engines, request_of, watcher, tmp_path, project_root):
    text = (project_root / "search_spaces" / "builtin" / "tiny-cpu.yaml").read_text()
    (tmp_path / "none.yaml").write_text(text + '\nrules: ["max-num-seqs > 1000"]\n')
    with pytest.raises(InputError, match="max-num-seqs > 1000"):
        run_study(request_of(space=str(tmp_path / "none.yaml")), watcher)
    assert engines.splits == []
    assert not (tmp_path / "s.db").exists()


# --- cores


@pytest.fixture
def cores(monkeypatch) -> set[int]:
    """Four cores, of which this process may use all; what it is pinned to."""
    allowed = {0, 1, 2, 3}

    def pin(pid, cpus):
        allowed.clear()
        allowed.update(cpus)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed))
    monkeypatch.setattr(os, "sched_setaffinity", pin)
    return allowed


def test_engine_and_client_never_share_a_core(engines, request_of, watcher, cores):
    run_study(request_of(), watcher)
    (split,) = engines.splits
    assert split.engine == (0, 1, 2)
    assert engines.affinity == [{3}] * 3
    assert cores == {0, 1, 2, 3}, "given back after the run"


def test_the_cores_are_given_back_after_trouble_as_well(engines, request_of, watcher, cores):
    def fails() -> None:
        raise HostError("the database is gone")

    engines.attempt = fails
    with pytest.raises(HostError):
        run_study(request_of(), watcher)
    assert cores == {0, 1, 2, 3}


# --- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_with_the_record_complete(engines, request_of, watcher, number):
    async def interrupted() -> None:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    engines.attempt = interrupted
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=number.name) as caught:
        run_study(request_of(), watcher)
    assert caught.value.exit_code == 130
    assert (engines.up, engines.closed) == (0, 1)
    assert states(request_of()) == ["interrupted"]
    assert signal.getsignal(number) == before
    engines.attempt = lambda: None
    outcome = run_study(request_of(), watcher)
    assert engines.markers == ["tiny-cpu/0/1", "tiny-cpu/0/2", "tiny-cpu/1/1", "tiny-cpu/2/1"]
    assert len(outcome.trials) == 3


def test_a_run_under_nohup_outlives_its_terminal(engines, request_of, watcher):
    async def hung_up() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)

    engines.attempt = hung_up
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert len(run_study(request_of(), watcher).trials) == 3
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_processes_that_cannot_be_ended_are_named(engines, request_of, watcher):
    engines.survivors = (Seen(4711, 1, 1, 4711, 4711, "VLLM::EngineCor"),)

    async def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    engines.attempt = interrupted
    with pytest.raises(Interrupted) as caught:
        run_study(request_of(), watcher)
    assert caught.value.message == (
        "stopped by SIGTERM; the record is complete and processes 4711 (VLLM::EngineCor) are left"
    )
    assert "4711 (VLLM::EngineCor) of the engine survive SIGKILL and may hold memory" in watcher.notices
    engines.attempt = lambda: None
    assert run_study(request_of(), watcher).ended == "trials"


def test_a_host_without_a_place_for_the_ledger_is_told_and_used(engines, request_of, watcher, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOTUNE_STATE_DIR", str(tmp_path / "file"))
    assert len(run_study(request_of(), watcher).trials) == 3
    assert engines.ledgers == [None]
    assert [notice for notice in watcher.notices if "AUTOTUNE_STATE_DIR" in notice]


def test_a_second_signal_does_not_cut_the_tidying_up_short(engines, request_of, watcher):
    tidied = []

    async def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(5):
                await asyncio.sleep(0)
            tidied.append(True)

    engines.attempt = interrupted
    with pytest.raises(Interrupted, match="SIGINT"):
        run_study(request_of(), watcher)
    assert tidied == [True]
    assert engines.closed == 1


def test_a_cancellation_that_no_signal_asked_for_is_no_interruption(engines, request_of, watcher):
    async def cancels() -> None:
        raise asyncio.CancelledError

    engines.attempt = cancels
    with pytest.raises(asyncio.CancelledError):
        run_study(request_of(), watcher)
