"""Measure the grid of `tiny-cpu` settings on a live vLLM: the yardstick for what the best setting really is.

Usage: python tests/data/tiny_cpu_grid/measure.py [OUT.jsonl]

Each line of the output is one run of one setting, in the order they were run (shuffled, so that a drift of the machine
does not follow an axis). Lines that are there already are not measured again: the command can be stopped and resumed.
Run it on an otherwise idle machine; engine and client are kept on different cores.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optimizer.app.engine_choice import choose_engine
from optimizer.app.engines import start_launcher
from optimizer.app.facts import describe_host, software_versions
from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.config import StudyConfig
from optimizer.core.engine_config import JsonValue
from optimizer.core.trial import TrialRole
from optimizer.host.cpus import CpuSplit, pin_this_process, split_cpus
from optimizer.host.files import make_folder, write_json
from optimizer.metrics import summarize
from optimizer.tuning.attempts import content_seed
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.trial_pipeline import TrialJob, TrialPipeline

SEED = 0
OUT = Path(__file__).with_name("grid.jsonl")

AXES: dict[str, tuple[Any, ...]] = {
    "max-num-seqs": (16, 32, 64),
    "enable-prefix-caching": (False, True),
    "block-size": (32, 128),
    "engine-memory": (0.9, 1.7),
    "max-num-batched-tokens": (512, 2048),
}
COMMON = {"max-model-len": 2048, "speculation": "none"}
EXTRAS: tuple[dict[str, Any], ...] = (
    {"max-num-seqs": 4, "block-size": 32, "engine-memory": 1.7, "max-num-batched-tokens": 2048},
    {
        "block-size": 32,
        "enable-prefix-caching": False,
        "engine-memory": 0.9,
        "max-num-batched-tokens": 2048,
        "max-num-seqs": 8,
    },
    {"max-num-seqs": 8, "block-size": 32, "engine-memory": 1.7, "max-num-batched-tokens": 2048},
    {"max-num-seqs": 64, "block-size": 32, "engine-memory": 1.7, "max-num-batched-tokens": 256},
    {"max-num-seqs": 128, "block-size": 64, "engine-memory": 2.1, "max-num-batched-tokens": 4096},
    {"max-num-seqs": 64, "block-size": 64, "engine-memory": 1.7},
    {"max-num-seqs": 128, "block-size": 32, "engine-memory": 1.7},
    {"max-num-seqs": 64, "max-model-len": 16384, "engine-memory": 0.9},
    {"max-num-seqs": 64, "max-model-len": 16384, "engine-memory": 1.7},
    {"max-num-seqs": 64, "block-size": 32, "speculation": "ngram", "num-speculative-tokens": 1},
    {"max-num-seqs": 64, "block-size": 32, "speculation": "ngram", "num-speculative-tokens": 4},
    {"max-num-seqs": 16, "block-size": 32, "speculation": "ngram", "num-speculative-tokens": 3},
    {"max-num-seqs": 32, "block-size": 64, "speculation": "ngram", "num-speculative-tokens": 2},
    {"max-num-seqs": 128, "block-size": 32, "speculation": "ngram", "num-speculative-tokens": 4, "engine-memory": 2.1},
)
REPEATED: tuple[dict[str, Any], ...] = (
    {"max-num-seqs": 64, "block-size": 32, "speculation": "ngram", "num-speculative-tokens": 4},
    {
        "max-num-seqs": 64,
        "enable-prefix-caching": True,
        "block-size": 32,
        "engine-memory": 1.7,
        "max-num-batched-tokens": 2048,
    },
    {
        "max-num-seqs": 32,
        "enable-prefix-caching": True,
        "block-size": 32,
        "engine-memory": 1.7,
        "max-num-batched-tokens": 2048,
    },
    {
        "max-num-seqs": 16,
        "enable-prefix-caching": False,
        "block-size": 128,
        "engine-memory": 1.7,
        "max-num-batched-tokens": 2048,
    },
    {
        "max-num-seqs": 64,
        "enable-prefix-caching": False,
        "block-size": 128,
        "engine-memory": 0.9,
        "max-num-batched-tokens": 2048,
    },
)
REPEATS = 3


def planned_runs() -> list[tuple[dict[str, Any], int]]:
    """Every run as (setting, repeat), in the order of measuring."""
    grid = [{**COMMON, **dict(zip(AXES, values, strict=True))} for values in itertools.product(*AXES.values())]
    runs = [(setting, 0) for setting in (*grid, *({**COMMON, **extra} for extra in EXTRAS))]
    for setting in REPEATED:
        runs += [({**COMMON, **setting}, repeat) for repeat in range(1, REPEATS + 1)]
    random.Random(SEED).shuffle(runs)
    return runs


def _key(setting: dict[str, Any], repeat: int) -> str:
    return json.dumps([setting, repeat], sort_keys=True)


def runs_to_do(out: Path) -> list[tuple[dict[str, Any], int]]:
    """The planned runs that `out` does not hold yet."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    done = {_key(record["params"], record["repeat"]) for record in map(json.loads, lines)}
    return [(setting, repeat) for setting, repeat in planned_runs() if _key(setting, repeat) not in done]


class GridMeter:
    """Measures settings one after another, as trials of a study are."""

    def __init__(self, pipeline: TrialPipeline, config: StudyConfig, scratch: Path) -> None:
        self._pipeline = pipeline
        self._config = config
        self._scratch = scratch

    async def measure(self, number: int, setting: dict[str, Any], repeat: int) -> dict[str, Any]:
        """One line of the output."""
        resolved = settings_of(self._config).resolve(TrialRole.SEARCH, setting)
        clock = StageClock(lambda stages: None)
        job = TrialJob(
            marker=f"grid/{number}/{repeat}",
            config=resolved.config,
            expected_memory_gib=resolved.memory_gib,
            folder=make_folder(self._scratch / str(number)),
            study_seed=SEED,
            content_seed=content_seed(SEED, _key(setting, repeat), number, repeat),
            start_limit_s=self._config.engine.start_timeout_s,
        )
        outcome = await self._pipeline.run(job, clock, on_launch=lambda argv: None, on_progress=lambda progress: None)
        return {
            "params": setting,
            "repeat": repeat,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "metrics": None if outcome.measurement is None else summarize(outcome.measurement),
            "failure": None if outcome.failure is None else asdict(outcome.failure),
            "stages_s": {timing.stage.value: round(timing.duration_s or 0.0, 2) for timing in clock.stages},
        }


async def main(out: Path, todo: list[tuple[dict[str, Any], int]], split: CpuSplit) -> None:
    """Measure `todo`, one line of `out` each."""
    config = study_config(RunRequest(space="tiny-cpu"))
    engine = choose_engine("vllm", None)
    with tempfile.TemporaryDirectory() as scratch, out.open("a", encoding="utf-8") as file:
        launcher = await start_launcher(
            engine,
            config.engine,
            model=config.model.target,
            guard_log=Path(scratch) / "guard.log",
            split=split,
        )
        meter = GridMeter(TrialPipeline(launcher, config.workload), config, Path(scratch))
        for number, (setting, repeat) in enumerate(todo):
            record = await meter.measure(number, setting, repeat)
            file.write(json.dumps(record, sort_keys=True) + "\n")
            file.flush()
            value = record["metrics"]["output_tokens_per_s"] if record["metrics"] else record["failure"]["kind"]
            print(f"{number + 1}/{len(todo)} {value} {setting}", file=sys.stderr)
        await launcher.close()


if __name__ == "__main__":
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    facts: dict[str, JsonValue] = {
        "versions": dict(software_versions(choose_engine("vllm", None).vllm)),
        "host": {name: value for name, value in describe_host().items() if name not in ("name", "kernel")},
    }
    write_json(output.with_name("facts.json"), facts)
    cores = split_cpus()
    pin_this_process(cores.client)
    asyncio.run(main(output, runs_to_do(output), cores))
