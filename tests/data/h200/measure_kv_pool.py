"""Measure the KV pool that vLLM finds on a GPU, over batched tokens, sequences and utilizations.

Usage: python tests/data/h200/measure_kv_pool.py [OUT.jsonl] [--limit-s 540] [--until pool|ready] [--model FOLDER]

Each line of the output is one launch. An engine is stopped as soon as its log states the pool, which saves the capture
of its graphs; `--until ready` waits for it. Settings that are there already are not launched again, and no launch is
begun that the limit would cut short: the command can be stopped and resumed. The utilizations of one pair follow each
other, since a new pair of tokens and sequences is compiled anew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from optimizer.app.engine_choice import choose_engine
from optimizer.app.engines import start_launcher
from optimizer.app.facts import describe_host, software_versions
from optimizer.app.request import RunRequest, study_config
from optimizer.config import StudyConfig
from optimizer.core.engine_config import EngineConfig, JsonValue
from optimizer.core.trial import Stage
from optimizer.engine.launch import EngineFailed, EngineLauncher, EngineProcess
from optimizer.engine.vllm.startup_log import StartupFacts, startup_facts
from optimizer.host.cpus import split_cpus
from optimizer.host.files import write_json
from optimizer.host.gpus import Gpu, NvmlLibrary, open_nvml, visible_gpus

HERE = Path(__file__).parent
BATCHED_TOKENS = (8192, 2048, 16384)
SEQUENCES = (1024, 256, 32)
UTILIZATIONS = (0.92, 0.75, 0.5)
FIRST_GUESS_S = 90.0
"""A launch with a new compilation, before one has been timed."""
CLEAN_BYTES = 512 * 1024**2
CLEAN_LIMIT_S = 30.0


def planned() -> list[dict[str, Any]]:
    """Every setting, in the order of measuring: the widest spread of pairs first, should the time not do for all."""
    pairs = list(itertools.product(BATCHED_TOKENS, SEQUENCES))
    corners = [(8192, 1024), (2048, 32), (16384, 1024), (16384, 32), (2048, 1024)]
    ordered = [*corners, *(pair for pair in pairs if pair not in corners)]
    return [
        {"max-num-batched-tokens": tokens, "max-num-seqs": sequences, "gpu-memory-utilization": share}
        for tokens, sequences in ordered
        for share in UTILIZATIONS
    ]


def still_to_do(out: Path) -> list[dict[str, Any]]:
    """The planned settings that `out` does not hold yet."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    done = [json.loads(line)["setting"] for line in lines]
    return [setting for setting in planned() if setting not in done]


class PoolMeter:
    """Launches settings one after another and reads what the engine says of its memory."""

    def __init__(self, launcher: EngineLauncher, config: StudyConfig, gpu: Gpu, nvml: NvmlLibrary, until: str) -> None:
        self._launcher = launcher
        self._config = config
        self._gpu = gpu
        self._nvml = nvml
        self._until = until
        self._idle_bytes = nvml.read(gpu).used_bytes

    async def measure(self, setting: dict[str, Any], log: Path, limit_s: float) -> dict[str, Any]:
        """One line of the output."""
        begun_s = time.monotonic()
        engine = await self._launcher.launch(self._engine_config(setting), log=log, marker=f"pool/{log.stem}")
        failure: str | None = None
        try:
            async with asyncio.timeout(limit_s):
                await engine.unless_it_ends(self._reported(engine), Stage.LAUNCHING)
                if self._until == "ready":
                    await engine.wait_ready(limit_s=limit_s)
        except EngineFailed as trouble:
            failure = f"{trouble.failure.kind}: {trouble.failure.detail}"
        except TimeoutError:
            failure = "no KV pool was reported in the time that was left"
        finally:
            facts = startup_facts(engine.log_text())
            await engine.stop()
            await self._clean()
        return {
            "setting": setting,
            **asdict(facts),
            "device_bytes": self._gpu.total_bytes,
            "seconds": round(time.monotonic() - begun_s, 1),
            "failure": failure,
        }

    def _engine_config(self, setting: dict[str, Any]) -> EngineConfig:
        config = self._config.resolve({}, device_memory_bytes=None)
        return replace(config, flags={**config.flags, **setting})

    async def _reported(self, engine: EngineProcess) -> StartupFacts:
        while True:
            facts = startup_facts(engine.log_text())
            if facts.kv_cache_tokens is not None:
                return facts
            await asyncio.sleep(0.2)

    async def _clean(self) -> None:
        """Wait until the card is as empty as before: vLLM counts what is used when it starts."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_LIMIT_S):
                while True:
                    if self._nvml.read(self._gpu).used_bytes <= self._idle_bytes + CLEAN_BYTES:
                        return
                    await asyncio.sleep(0.2)


async def main(options: argparse.Namespace) -> None:
    """Measure until all is done or the time is up."""
    end_s = time.monotonic() + options.limit_s
    flags = ("load-format=dummy", "skip-tokenizer-init=true", *options.set)
    config = study_config(RunRequest(space="qwen13b", model=options.model, set_flags=flags))
    choice = choose_engine("vllm", None)
    nvml = open_nvml()
    if nvml is None:
        sys.exit("this host has no NVIDIA driver")
    with contextlib.closing(nvml), tempfile.TemporaryDirectory() as scratch:
        gpu = visible_gpus(nvml, None).gpus[0]
        facts: dict[str, JsonValue] = {
            "gpu": gpu.name,
            "device_bytes": gpu.total_bytes,
            "driver": nvml.driver_version(),
        }
        versions = software_versions(choice.vllm)
        host = {name: value for name, value in describe_host().items() if name not in ("name", "kernel")}
        write_json(options.out.with_suffix(".facts.json"), {**facts, "versions": {**versions}, "host": host})
        launcher = await start_launcher(
            choice,
            config.engine.model_copy(update={"warm_start": True}),
            model=config.model.target,
            guard_log=Path(scratch) / "guard.log",
            split=split_cpus(),
        )
        try:
            await _measure_all(PoolMeter(launcher, config, gpu, nvml, options.until), options.out, Path(scratch), end_s)
        finally:
            await launcher.close()


async def _measure_all(meter: PoolMeter, out: Path, scratch: Path, end_s: float) -> None:
    longest_s = FIRST_GUESS_S
    todo = still_to_do(out)
    with out.open("a", encoding="utf-8") as file:
        for number, setting in enumerate(todo):
            left_s = end_s - time.monotonic()
            if left_s < longest_s:
                print(f"{left_s:.0f} s are left, a launch may take {longest_s:.0f}: stopped", file=sys.stderr)
                return
            row = await meter.measure(setting, scratch / f"{number}.log", left_s)
            longest_s = row["seconds"] if number == 0 else max(longest_s, row["seconds"])
            file.write(json.dumps(row, sort_keys=True) + "\n")
            file.flush()
            told = row["failure"] or f"{row['available_kv_gib']} GiB, {row['kv_cache_tokens']} tokens"
            print(f"{number + 1}/{len(todo)} {told} in {row['seconds']} s {setting}", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure vLLM's KV pool on a GPU.")
    parser.add_argument("out", nargs="?", type=Path, default=HERE / "kv_pool.jsonl")
    parser.add_argument("--model", default=str(HERE), help="folder with the model's config.json")
    parser.add_argument("--limit-s", type=float, default=540.0, help="no launch is begun that would end later")
    parser.add_argument("--until", choices=("pool", "ready"), default="pool")
    parser.add_argument("--set", action="append", default=[], metavar="FLAG=VALUE", help="a further flag")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(_options()))
