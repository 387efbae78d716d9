"""A drill on a machine with a GPU: a real stop verified by NVML, and real co-tenants met and named.

    python3 -m tests.gpu.stop_drill --space qwen13b --model PATH --set load-format=dummy

From the top of the checkout, with a Python that has what vllm-autotune needs; vLLM may live in another one
(`--engine-python`). No pytest. Steps, in order; `--steps` picks some:

    stop    launch an engine, stop it, and see each card's memory come back
    busy    a co-tenant takes memory before the launch: what the trial ends with, and that the next attempt succeeds
            once the co-tenant is gone
    text    the same with nobody looking at the card: what vLLM itself says of it, and what that is read as
    middle  a co-tenant comes while the engine is under load: its measurement does not count

Progress goes to stderr, one JSON object to stdout; exit code 1 when a step did not end as it should.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optimizer.app.engine_choice import choose_engine
from optimizer.app.engines import start_launcher
from optimizer.app.gpus import study_gpus
from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.core.engine_config import EngineConfig
from optimizer.core.errors import AutotuneError, HostError
from optimizer.core.failure import FailureKind
from optimizer.core.trial import TrialRole
from optimizer.engine.launch import EngineLauncher
from optimizer.host.cpus import split_cpus
from optimizer.host.files import make_folder
from optimizer.host.guard import start_ticks
from optimizer.load import Workload
from optimizer.load.progress import LoadProgress
from optimizer.tuning.gpu_count import gpus_of
from optimizer.tuning.gpu_hold import GpuHold, visible
from optimizer.tuning.gpu_pipeline import GpuPipeline
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.trial_pipeline import AttemptOutcome, TrialJob, TrialPipeline

MIB = 2**20
STEPS = ("stop", "busy", "text", "middle")
WORKLOAD = Workload.model_validate(
    {
        "name": "drill",
        "arrivals": {"kind": "closed_loop", "in_flight": 8},
        "prompt_tokens": {"kind": "fixed", "tokens": 64},
        "output_tokens": {"kind": "fixed", "tokens": 32},
        "warmup": {"requests": 8, "max_s": 20},
        "window": {"min_s": 5, "max_s": 20, "min_requests": 16},
    }
)
_SAMPLE_EVERY_S = 1.0
_CLEAN_LIMIT_S = 30.0
_TENANT = """
import os, sys, time
parent = os.getpid()
if os.fork():
    os._exit(0)  # the child descends from nobody of this drill: it must look like anybody else's process
os.setsid()
while os.getppid() == parent:
    time.sleep(0.001)
import torch
held = torch.empty(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
held.zero_()
torch.cuda.synchronize()
print(os.getpid(), flush=True)
sys.stdin.read()
"""

Tenant = Callable[[float], contextlib.AbstractAsyncContextManager[int]]
"""Another process that holds that many GiB of the first card while the block runs; gives its PID."""


@dataclass(frozen=True)
class Drill:
    """What the steps need, real or invented."""

    hold: GpuHold
    launcher: EngineLauncher
    config: EngineConfig
    folder: Path
    tenant: Tenant
    tenant_gib: float
    small_tenant_gib: float
    start_limit_s: float
    workload: Workload = WORKLOAD

    async def stop(self) -> dict[str, Any]:
        """Launch, stop, and see the memory come back."""
        gpus = self.hold.cards_for(gpus_of(self.config))
        before = self._used_mib()
        log = self._folder("stop") / "engine.log"
        config = replace(self.config, env={**self.config.env, **visible(gpus)})
        begun_s = time.monotonic()
        engine = await self.launcher.launch(config, log=log, marker="stop-drill/0/1")
        most = list(before)
        try:
            async with self._sampling(most):
                await engine.wait_ready(limit_s=self.start_limit_s)
                ready_after_s = time.monotonic() - begun_s
            seen = [self.hold.look(gpu) for gpu in gpus]
        finally:
            report = await engine.stop()
        after = await self._until_back(before)
        looks, _, failure = await self.hold.clean_after_stop(gpus)
        return {
            "ok": failure is None and not report.left,
            "ready_after_s": round(ready_after_s, 1),
            "before_mib": before,
            "peak_mib": most,
            "pids_listed_while_up": [[process.pid for process in look.ours] for look in seen],
            "stop": {"term_s": round(report.term_s, 2), "killed": list(report.killed), "left": list(report.left)},
            "after_stop_s_and_mib": after,
            "still_ours": [[process.pid for process in look.ours] for look in looks],
            "failure": None if failure is None else failure.detail,
        }

    async def busy(self) -> dict[str, Any]:
        """A co-tenant before the launch, and then none."""
        async with self.tenant(self.tenant_gib) as pid:
            with_tenant = await self._attempt("busy-1", watched=True)
        without = await self._attempt("busy-2", watched=True)
        return {
            "ok": _kind(with_tenant) is FailureKind.GPU_BUSY and without.measurement is not None,
            "tenant_pid": pid,
            "with_tenant": _told(with_tenant),
            "without": _told(without),
        }

    async def text(self) -> dict[str, Any]:
        """The engine's own words of a card that is full."""
        async with self.tenant(self.tenant_gib) as pid:
            outcome = await self._attempt("text", watched=False)
        return {"ok": _kind(outcome) is FailureKind.GPU_BUSY, "tenant_pid": pid, "outcome": _told(outcome)}

    async def middle(self) -> dict[str, Any]:
        """A co-tenant that comes during the load, into what the engine has left free."""
        async with contextlib.AsyncExitStack() as stack:
            coming: list[asyncio.Task[int]] = []

            def under_load(progress: LoadProgress) -> None:
                if not coming:
                    coming.append(asyncio.create_task(stack.enter_async_context(self.tenant(self.small_tenant_gib))))

            outcome = await self._attempt("middle", watched=True, on_progress=under_load)
            pids = await asyncio.gather(*coming)
        return {"ok": _kind(outcome) is FailureKind.GPU_BUSY, "tenant_pid": pids, "outcome": _told(outcome)}

    async def _attempt(
        self, name: str, *, watched: bool, on_progress: Callable[[LoadProgress], None] = lambda progress: None
    ) -> AttemptOutcome:
        pipeline = TrialPipeline(self.launcher, self.workload)
        job = TrialJob(
            marker=f"stop-drill/{name}",
            config=replace(self.config, env={**self.config.env, **self.hold.environment}),
            expected_memory_gib=None,
            folder=self._folder(name),
            study_seed=0,
            content_seed=int(time.time()),
            start_limit_s=self.start_limit_s,
        )
        runner = GpuPipeline(pipeline, self.hold) if watched else pipeline
        clock = StageClock(lambda stages: say(f"  {name}: {stages[-1].stage}"))
        return await runner.run(job, clock, on_launch=lambda argv: None, on_progress=on_progress)

    def _folder(self, name: str) -> Path:
        return make_folder(self.folder / name)

    def _used_mib(self) -> list[int]:
        return [self.hold.look(gpu).used_bytes // MIB for gpu in self.hold.gpus]

    @contextlib.asynccontextmanager
    async def _sampling(self, most: list[int]) -> AsyncIterator[None]:
        async def sample() -> None:
            begun_s = time.monotonic()
            while True:
                used = await asyncio.to_thread(self._used_mib)
                most[:] = [max(pair) for pair in zip(most, used, strict=True)]
                say(f"  {time.monotonic() - begun_s:6.1f} s  {used} MiB")
                await asyncio.sleep(_SAMPLE_EVERY_S)

        task = asyncio.create_task(sample())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _until_back(self, before: list[int]) -> list[tuple[float, list[int]]]:
        """Use after the stop, once a quarter of a second, until it is back where it was."""
        begun_s = time.monotonic()
        series = []
        while True:
            used = self._used_mib()
            elapsed_s = round(time.monotonic() - begun_s, 2)
            series.append((elapsed_s, used))
            say(f"  {elapsed_s:6.2f} s after the stop  {used} MiB")
            back = all(now <= then + 16 for now, then in zip(used, before, strict=True))
            if back or elapsed_s > _CLEAN_LIMIT_S:
                return series
            await asyncio.sleep(0.25)


def torch_tenant(python: str, hold: GpuHold) -> Tenant:
    """A process of the engine's Python that allocates with torch."""

    @contextlib.asynccontextmanager
    async def tenant(gib: float) -> AsyncIterator[int]:
        words = [python, "-c", _TENANT, str(gib)]
        env = {**os.environ, **visible(hold.gpus[:1])}
        process = await asyncio.create_subprocess_exec(
            *words, env=env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None and stdout is not None  # both were asked for as pipes
        line = await asyncio.wait_for(stdout.readline(), 120)
        if not line:
            raise HostError(f"the co-tenant got no {gib:g} GiB: its own words stand above", hint="give it less")
        say(f"  co-tenant: pid {int(line)} holds {gib:g} GiB")
        try:
            yield int(line)
        finally:
            stdin.close()
            await process.wait()
            await asyncio.to_thread(_until_gone, int(line))
            say("  co-tenant: gone")

    return tenant


def _until_gone(pid: int) -> None:
    """Looks again and again, since the process is no child of ours that could be waited for."""
    while start_ticks(pid):
        time.sleep(0.05)


def _kind(outcome: AttemptOutcome) -> FailureKind | None:
    return None if outcome.failure is None else outcome.failure.kind


def _told(outcome: AttemptOutcome) -> dict[str, Any]:
    failure = outcome.failure
    if failure is None:
        return {"measured": outcome.measurement is not None, "notes": list(outcome.notes)}
    return {
        "kind": failure.kind.value,
        "stage": failure.stage.value,
        "blame": failure.blame.value,
        "retryable": failure.retryable,
        "detail": failure.detail,
        "evidence": list(failure.evidence),
        "notes": list(outcome.notes),
    }


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


async def run_steps(drill: Drill, steps: list[str]) -> dict[str, Any]:
    """The chosen steps, one after another."""
    actions: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "stop": drill.stop,
        "busy": drill.busy,
        "text": drill.text,
        "middle": drill.middle,
    }
    results: dict[str, Any] = {}
    for step in steps:
        say(f"{step}:")
        results[step] = await actions[step]()
    return {"ok": all(result["ok"] for result in results.values()), **results}


async def _main(options: argparse.Namespace) -> dict[str, Any]:
    request = RunRequest(
        space=options.space, study="stop-drill", model=options.model, set_flags=tuple(options.set or ())
    )
    config = study_config(request)
    settings = settings_of(config)
    engine = choose_engine(config.engine.kind, options.engine_python)
    folder = make_folder(Path(options.folder or tempfile.mkdtemp(prefix="stop-drill-")))
    with study_gpus(config, settings, engine, None) as gpus:
        if gpus.hold is None:
            raise SystemExit("this drill is for a space with engine.device: gpu")
        for note in gpus.notes:
            say(note)
        section = config.engine.model_copy(
            update={"env": {**config.engine.env, **gpus.environment}, "warm_start": options.warm}
        )
        launcher = await start_launcher(
            engine, section, model=config.model.target, guard_log=folder / "guard.log", split=split_cpus()
        )
        try:
            drill = Drill(
                hold=gpus.hold,
                launcher=launcher,
                config=settings.resolve(TrialRole.BASELINE, {}).config,
                folder=folder,
                tenant=torch_tenant(engine.python, gpus.hold),
                tenant_gib=options.tenant_gib,
                small_tenant_gib=options.small_tenant_gib,
                start_limit_s=config.engine.start_timeout_s,
            )
            results = await run_steps(drill, options.steps.split(","))
        finally:
            await launcher.close()
        return {"facts": gpus.facts, "vllm": engine.version, "folder": str(folder), **results}


def main() -> int:
    """Read the options and run the drill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", default="qwen13b")
    parser.add_argument("--model", help="folder with a config.json, or hub id")
    parser.add_argument("--set", action="append", metavar="FLAG=VALUE", help="as of `run`; may be repeated")
    parser.add_argument("--engine-python", help="the Python that has vLLM and torch")
    parser.add_argument("--warm", action="store_true", help="fork engines from a warm spare")
    parser.add_argument("--steps", default=",".join(STEPS), help="comma-separated")
    parser.add_argument("--tenant-gib", type=float, default=24.0, help="too much beside an engine")
    parser.add_argument("--small-tenant-gib", type=float, default=3.0, help="fits beside an engine")
    parser.add_argument("--folder", help="for logs; a temporary one by default")
    options = parser.parse_args()
    try:
        results = asyncio.run(_main(options))
    except AutotuneError as error:
        say(f"{error.message}\n{error.hint or ''}")
        return error.exit_code
    sys.stdout.write(json.dumps(results) + "\n")
    return 0 if results["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
