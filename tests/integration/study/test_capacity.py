"""A study of capacity through the command line: the search runs inside one life of a real engine process."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.drill import RUN, write_space
from tests.driving import Driver, Finished

pytestmark = pytest.mark.timeout(600)

CHANGES = {
    "trials": 2,
    "objective": "capacity",
    # Far above what a busy machine adds, and a low percentile, which few requests decide and short runs of the model.
    "slos": ["p10_e2e_ms=3000"],
    "baseline": "vllm serve tiny-kv --max-num-seqs 4",
    "workload": {
        "name": "drill",
        "arrivals": {"kind": "closed_loop", "in_flight": 8},
        "shared_prefix": {"prefixes": 2, "tokens": 64},
        "prompt_tokens": {"kind": "uniform", "low": 16, "high": 32},
        "output_tokens": {"kind": "uniform", "low": 8, "high": 24},
        "warmup": {"requests": 4, "max_s": 3},
        "window": {"min_s": 0.3, "max_s": 2, "min_requests": 20},
    },
}


@dataclass(frozen=True)
class Studied:
    """What the study said and left."""

    folder: Path
    ran: Finished
    shown: Any


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("capacity")
    write_space(folder, CHANGES)
    driver = Driver(folder, {"AUTOTUNE_SIM_SPEED": "2"})
    try:
        run = driver.start(*RUN)
        run.wait_for("best so far: #0", limit_s=400.0)
        run.send(signal.SIGINT)
        yield Studied(folder, run.finish(), driver.json("show", "0", "--json"))
    finally:
        driver.close()


def test_every_rate_is_told_and_the_capacity_is_one_of_them(studied):
    notes = studied.shown["notes"]
    summary = next(note for note in notes if note.startswith("capacity: highest feasible rate "))
    tried = next(note for note in notes if re.match(r"[\d,]+ requests at \d+ rates: ", note))
    assert studied.shown["score"]["metric"] == "capacity_requests_per_s"
    value = studied.shown["metrics"]["capacity_requests_per_s"]
    knee = studied.shown["metrics"]["knee_requests_per_s"]
    # There is none where the machine made the engine unlike the model.
    assert ("limits used up at about" in summary) == (knee is not None)
    assert knee is None or knee > 0.0
    assert "saturated at" in summary
    rates = [
        float(rate) for rate in re.findall(r"(?:: |, )([\d.]+) (?:looked at|feasible|infeasible|undecided)", tried)
    ]
    assert len(rates) == int(re.findall(r"at (\d+) rates: ", tried)[0]) >= 2
    assert min(abs(rate / value - 1.0) for rate in rates) < 0.2


def test_one_engine_lived_and_each_rate_left_its_samples(studied):
    # A busy machine may have spoiled an attempt before.
    folder = Path(studied.shown["attempts"][-1]["folder"])
    levels = sorted(folder.glob("level-*-requests.csv.gz"))
    assert len(levels) >= 3, "two rates at least, and what saturates the engine"
    assert (folder / "requests.csv.gz").exists()
    assert (folder / "series.csv.gz").exists()
    assert len(list(folder.glob("engine*.log"))) == 1


def test_a_limit_relative_to_the_baseline_is_refused_before_anything_starts(tmp_path):
    write_space(tmp_path, CHANGES | {"slos": ["p50_e2e<=2x"]})
    driver = Driver(tmp_path, {})
    try:
        refused = driver.run(*RUN)
    finally:
        driver.close()
    assert refused.exit_code == 2
    assert "the objective capacity tries many rates" in refused.err
    assert "state it in milliseconds" in refused.err
