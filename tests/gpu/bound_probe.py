"""Find out what binds a closed loop on a GPU, and what lifting that limit gives: API servers, load processes, or both.

Usage: PYTHONPATH=. python tests/gpu/bound_probe.py [OUT.jsonl] [--limit-s 420] [--window-s 40] [--traffic shared]

Each line of the output is one window under 128 requests in flight. Variants that are there already are not measured
again, and none is begun that the limit would cut short: the command can be stopped and resumed. Engines differ in
`--api-server-count` alone. `--engine simulated` tries the script on a host without a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from optimizer.app.engine_choice import EngineChoice, choose_engine
from optimizer.app.engines import start_launcher
from optimizer.app.request import RunRequest, study_config
from optimizer.config import StudyConfig
from optimizer.core.measurement import Measurement
from optimizer.engine.launch import EngineFailed, EngineProcess
from optimizer.host.cpus import split_cpus
from optimizer.host.gpus import NvmlLibrary, open_nvml, visible_gpus
from optimizer.load import RequestPlan, Workload
from optimizer.load.driver import run_load
from optimizer.load.warm_up import warm_up
from optimizer.metrics import BoundContext, Telemetry, judge_bound, summarize

MODEL = Path(__file__).parents[1] / "data" / "h200"
FIRST_LAUNCH_S = 130.0
"""A launch that compiles, before one has been timed."""
TOLD = (
    *("output_tokens_per_s", "requests_per_s", "p50_ttft_ms", "p99_ttft_ms", "p50_itl_ms", "p99_tpot_ms"),
    *("engine_itl_mean_ms", "running_mean", "waiting_mean", "kv_cache_usage_mean", "prefix_cache_hit_rate"),
    *("gpu_util_mean", "gpu_mem_util_mean", "gpu_power_w_mean", "output_tokens_per_j", "gpu_throttled_share"),
    *("client_lag_p99_ms", "error_rate", "requests_counted"),
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One window: how many API servers and load processes."""

    name: str
    api_servers: int
    processes: int


VARIANTS = (
    Variant("default", 1, 1),
    Variant("2 load processes", 1, 2),
    Variant("4 load processes", 1, 4),
    Variant("4 API servers", 4, 1),
    Variant("4 API servers, 4 load processes", 4, 4),
)
"""Grouped by engine, so that two launches do."""


def traffic(kind: str, in_flight: int, window_s: float) -> Workload:
    """Fixed lengths: 1500 tokens of its own for each request, or 2000 shared and 400 of its own."""
    shared = {"shared_prefix": {"prefixes": 1, "tokens": 2000}} if kind == "shared" else {}
    own_tokens, output_tokens = (400, 200) if kind == "shared" else (1500, 256)
    return Workload.model_validate(
        {
            "name": f"bound-{kind}",
            "arrivals": {"kind": "closed_loop", "in_flight": in_flight},
            "prompt_tokens": {"kind": "fixed", "tokens": own_tokens},
            "output_tokens": {"kind": "fixed", "tokens": output_tokens},
            **shared,
            "warmup": {"requests": 8, "max_s": 20},
            "window": {"min_s": window_s, "max_s": window_s, "min_requests": 1},
        }
    )


def measured(out: Path) -> list[dict[str, Any]]:
    """The lines of `out` that are no failures."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    return [row for row in map(json.loads, lines) if row.get("failure") is None]


def still_to_do(out: Path, kind: str) -> list[Variant]:
    """The variants that `out` does not hold yet."""
    done = {(row["traffic"], row["variant"]["name"]) for row in measured(out)}
    return [variant for variant in VARIANTS if (kind, variant.name) not in done]


class Probe:
    """Measures variants, one engine at a time."""

    def __init__(self, options: argparse.Namespace, nvml: NvmlLibrary | None, scratch: Path) -> None:
        self._options = options
        self._nvml = nvml
        self._gpus = () if nvml is None else visible_gpus(nvml, None).gpus[:1]
        self._scratch = scratch
        self._choice = choose_engine(options.engine, None)
        flags = ("load-format=dummy", "skip-tokenizer-init=true", *options.set)
        self._config = study_config(RunRequest(space="qwen13b", model=options.model, set_flags=flags))
        self._workload = traffic(options.traffic, options.in_flight, options.window_s)

    async def rows(self, variants: Sequence[Variant], end_s: float) -> AsyncIterator[dict[str, Any]]:
        """One line for each variant, as far as the time does."""
        launch_s = max((row["launch_s"] for row in measured(self._options.out)), default=FIRST_LAUNCH_S)
        for servers in dict.fromkeys(variant.api_servers for variant in variants):
            if end_s - time.monotonic() < launch_s + self._window_s:
                return
            begun_s = time.monotonic()
            try:
                async with self._engine(servers, limit_s=end_s - begun_s) as engine:
                    launch_s = time.monotonic() - begun_s
                    async for row in self._on(engine, [v for v in variants if v.api_servers == servers], end_s):
                        yield {"launch_s": round(launch_s, 1), **row}
            except EngineFailed as trouble:
                failure = f"{trouble.failure.kind}: {trouble.failure.detail}"
                for variant in variants:
                    if variant.api_servers == servers:
                        yield self._row(variant, {"failure": failure, "evidence": list(trouble.failure.evidence)})

    @property
    def _window_s(self) -> float:
        """A whole window with its ramp and drain, as a guess."""
        return float(self._options.window_s) + 35.0

    async def _on(
        self, engine: EngineProcess, variants: Sequence[Variant], end_s: float
    ) -> AsyncIterator[dict[str, Any]]:
        for variant in variants:
            if end_s - time.monotonic() < self._window_s:
                return
            measurement = await self._measure(engine, variant)
            yield self._row(variant, self._told(measurement))

    async def _measure(self, engine: EngineProcess, variant: Variant) -> Measurement:
        content = 1 + VARIANTS.index(variant)
        plan = RequestPlan(self._workload, 0, content, engine.endpoint.vocab_size)
        await engine.reset_prefix_cache()
        await warm_up(engine.endpoint, self._workload, plan)
        async with aiohttp.ClientSession() as session:
            telemetry = Telemetry(
                engine.endpoint, session, engine_pids=lambda: (engine.pid,), gauges=self._nvml, gpus=self._gpus
            )
            async with telemetry:
                load = await run_load(
                    engine.endpoint,
                    self._workload,
                    plan,
                    on_window_open=telemetry.mark_start,
                    on_window_close=telemetry.mark_end,
                    processes=variant.processes,
                )
        name = f"{self._options.traffic}-{variant.api_servers}-{variant.processes}"
        telemetry.write(self._options.out.with_name(f"{self._options.out.stem}.{name}.csv.gz"))
        observed = telemetry.result()
        return Measurement(load, observed.engine, observed.host, observed.gpu)

    def _told(self, measurement: Measurement) -> dict[str, Any]:
        metrics = summarize(measurement)
        bound = judge_bound(measurement, BoundContext(in_flight=self._options.in_flight))
        health = measurement.load.client
        return {
            "bound_by": bound.kind.value,
            "why": bound.detail,
            "roles": [asdict(use) for use in measurement.host.roles],
            "metrics": {name: metrics[name] for name in TOLD},
            "client": None if health is None else asdict(health),
            "notes": list(measurement.engine.notes),
        }

    def _row(self, variant: Variant, told: dict[str, Any]) -> dict[str, Any]:
        return {"traffic": self._options.traffic, "variant": asdict(variant), **told}

    @contextlib.asynccontextmanager
    async def _engine(self, servers: int, *, limit_s: float) -> AsyncIterator[EngineProcess]:
        """A ready engine that is gone, with its guard, when the block is left."""
        launcher = await start_launcher(
            self._choice,
            _warm(self._config, self._choice),
            model=self._config.model.target,
            guard_log=self._scratch / f"guard-{servers}.log",
            split=split_cpus(),
        )
        config = self._config.resolve({}, device_memory_bytes=None)
        if servers > 1:
            config = replace(config, flags={**config.flags, "api-server-count": servers})
        log = self._scratch / f"engine-{servers}.log"
        try:
            engine = await launcher.launch(config, log=log, marker=f"bound/{servers}")
            try:
                await engine.wait_ready(limit_s=limit_s, stall_s=limit_s)
                yield engine
            finally:
                await engine.stop()
        finally:
            await launcher.close()


def _warm(config: StudyConfig, choice: EngineChoice) -> Any:
    return config.engine.model_copy(update={"warm_start": choice.vllm is not None})


def told(row: dict[str, Any]) -> str:
    """One line for a person."""
    name = row["variant"]["name"]
    if row.get("failure") is not None:
        return f"{name}: {row['failure']}"
    metrics = row["metrics"]
    threads = ", ".join(f"{use['role']} {use['busiest']['cores']:.2f}" for use in row["roles"])
    gpu = "no GPU" if metrics["gpu_util_mean"] is None else f"GPU {metrics['gpu_util_mean']:.0%}"
    power = "" if metrics["gpu_power_w_mean"] is None else f", {metrics['gpu_power_w_mean']:.0f} W"
    return (
        f"{name}: {metrics['output_tokens_per_s']:.0f} output tok/s; busiest threads: {threads}; {gpu}{power}; "
        f"bound by {row['bound_by']}: {row['why']}"
    )


async def main(options: argparse.Namespace) -> None:
    """Measure until all is done or the time is up."""
    end_s = time.monotonic() + options.limit_s
    nvml = None if options.engine == "simulated" else open_nvml()
    todo = still_to_do(options.out, options.traffic)
    with contextlib.ExitStack() as stack:
        if nvml is not None:
            stack.enter_context(contextlib.closing(nvml))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = stack.enter_context(options.out.open("a", encoding="utf-8"))
        probe = Probe(options, nvml, scratch)
        async for row in probe.rows(todo, end_s):
            file.write(json.dumps(row, sort_keys=True) + "\n")
            file.flush()
            sys.stderr.write(f"{told(row)}\n")
    left = still_to_do(options.out, options.traffic)
    sys.stderr.write(f"{len(left)} variants are left: run it again\n" if left else "done\n")


def _options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What binds 128 requests in flight on this GPU?")
    parser.add_argument("out", nargs="?", type=Path, default=Path("bound.jsonl"))
    parser.add_argument("--model", default=str(MODEL), help="folder with the model's config.json")
    parser.add_argument("--engine", choices=("vllm", "simulated"), default="vllm")
    parser.add_argument("--traffic", choices=("unique", "shared"), default="unique")
    parser.add_argument("--in-flight", type=int, default=128)
    parser.add_argument("--window-s", type=float, default=40.0)
    parser.add_argument("--limit-s", type=float, default=420.0, help="nothing is begun that would end later")
    parser.add_argument("--set", action="append", default=[], metavar="FLAG=VALUE", help="a further flag")
    return parser.parse_args(argv)


if __name__ == "__main__":
    asyncio.run(main(_options()))
