"""The committed grid must stay a yardstick of the built-in space: its settings, its size, its repeats."""

import json
import statistics
from collections import defaultdict

import pytest

from optimizer.app.request import RunRequest, study_config
from optimizer.core.failure import FailureKind

GIB = 1024**3


@pytest.fixture(scope="module")
def grid(project_root):
    lines = (project_root / "tests/data/tiny_cpu_grid/grid.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def runs(grid):
    """Setting (as JSON) to the throughputs of its runs; failed settings have none."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for record in grid:
        key = json.dumps(record["params"], sort_keys=True)
        values[key] += [] if record["metrics"] is None else [record["metrics"]["output_tokens_per_s"]]
    return values


def test_every_setting_lies_in_the_space_and_keeps_its_rules(grid):
    config = study_config(RunRequest(space="tiny-cpu"))
    for record in grid:
        config.space.check(record["params"])
        engine = config.resolve(record["params"], device_memory_bytes=24 * GIB)
        assert config.space.broken_rules(engine.flags) == ()


def test_it_has_sixty_settings_and_repeats_enough_to_know_its_noise(runs):
    assert len(runs) >= 60
    repeated = [values for values in runs.values() if len(values) >= 3]
    assert len(repeated) >= 3
    for values in repeated:
        assert statistics.stdev(values) / statistics.mean(values) < 0.25


def test_it_shows_what_a_tuner_needs_to_see(grid):
    measured = [record for record in grid if record["metrics"] is not None]
    assert any(record["metrics"]["preemptions"] > 0 for record in measured), "a small pool preempts"
    assert any(record["metrics"]["waiting_mean"] > 10 for record in measured), "few sequences queue"
    kinds = {record["failure"]["kind"] for record in grid if record["failure"] is not None}
    assert FailureKind.KV_CACHE_TOO_SMALL in kinds, "a too generous context cap does not start"
