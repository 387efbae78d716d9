"""A study on the simulated engine whose trials take a second or two: its space file, and what its database holds."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

STUDY = "drill"
TRIALS = 5
SPEED = {"AUTOTUNE_SIM_SPEED": "100"}
RUN = ("run", "--space", "space.yaml", "--engine", "simulated")
"""The words of the run that every drill begins with."""

SPACE: dict[str, Any] = {
    "name": STUDY,
    "model": "tiny-kv",
    "trials": TRIALS,
    "engine": {"start_timeout_s": 60, "flags": {"load-format": "dummy"}},
    "parameters": {
        "max-num-seqs": {"kind": "int", "low": 4, "high": 64, "log": True, "default": 64},
        "max-num-batched-tokens": {"kind": "choice", "choices": [256, 512, 1024, 2048], "default": 2048},
        "enable-prefix-caching": {"kind": "bool", "default": True},
        "block-size": {"kind": "choice", "choices": [16, 32], "default": 16},
    },
    "workload": {
        "name": "drill",
        "arrivals": {"kind": "closed_loop", "in_flight": 8},
        "shared_prefix": {"prefixes": 2, "tokens": 64},
        "prompt_tokens": {"kind": "uniform", "low": 16, "high": 32},
        "output_tokens": {"kind": "uniform", "low": 4, "high": 8},
        "warmup": {"requests": 4, "max_s": 3},
        "window": {"min_s": 0.3, "max_s": 4, "min_requests": 100},
    },
    "objective": "throughput",
    # Loose: what is drilled here is the way of a study, and the machine may stall at any moment.
    "slos": ["p50_e2e<=1000x"],
    "baseline": "vllm serve tiny-kv --max-num-seqs 8",
    # Its proposals depend on no result, so that two studies of one seed can be compared whatever they measure.
    "sampler": "random",
}
"""A median far below its limit is decided by some 200 requests, however a busy machine stalls them. The limit is so far
above that what the client is late by on such a machine is no twentieth of it, which would have the trial repeated."""

STUCK: Mapping[str, Mapping[str, Any]] = {
    "launching": {"fault": "never_ready"},
    "warming up": {"fault": "hang_health_200", "after_requests": 1},
    "measuring": {"fault": "hang_health_200", "after_requests": 30},
}
"""Stage to what keeps an engine in it for half a minute. One request proves that it is ready, four warm it up."""


def write_space(folder: Path, changes: Mapping[str, Any] | None = None) -> None:
    """Writes `space.yaml` with some top-level keys replaced."""
    text = yaml.safe_dump({**SPACE, **(changes or {})}, sort_keys=False)
    (folder / "space.yaml").write_text(text, encoding="utf-8")


def stuck(folder: Path, stage: str, *, launch: int = 1) -> dict[str, str]:
    """Environment of a run of whose launches one, counted from 1, gets no further than a stage.

    Whoever stops the run in that stage still meets it there when a busy machine makes him late.
    """
    state = folder / "launches"
    state.unlink(missing_ok=True)
    faults = [{**STUCK[stage], "nth_launch": launch}]
    return {"AUTOTUNE_SIM_FAULTS": json.dumps(faults), "AUTOTUNE_SIM_STATE": str(state)}


@dataclass(frozen=True)
class Recorded:
    """One trial as both halves of the database tell it.

    Attributes:
        attempts: Number of each attempt, in order.
        told: Its state in Optuna's tables.
    """

    number: int
    state: str
    params: dict[str, Any]
    attempts: list[int]
    told: str | None


@dataclass(frozen=True)
class History:
    """Reads a study's database past our own code."""

    file: Path

    @classmethod
    def of(cls, folder: Path) -> History:
        return cls(folder / "autotune" / "studies.db")

    def trials(self) -> list[Recorded]:
        """All trials by number; a number that only Optuna knows has the state `unrecorded`."""
        with closing(sqlite3.connect(self.file)) as database:
            ours = database.execute("SELECT id, number, state, params FROM autotune_trials ORDER BY number").fetchall()
            tries = database.execute("SELECT trial_id, number FROM autotune_attempts ORDER BY number").fetchall()
            told: dict[int, str] = dict(database.execute("SELECT number, state FROM trials").fetchall())
        recorded = [
            Recorded(number, state, json.loads(params), [n for of, n in tries if of == row], told.pop(number, None))
            for row, number, state, params in ours
        ]
        return recorded + [Recorded(number, "unrecorded", {}, [], state) for number, state in sorted(told.items())]

    def spans(self) -> list[tuple[datetime, datetime]]:
        """Start and end of each trial's last attempt."""
        with closing(sqlite3.connect(self.file)) as database:
            found = database.execute(
                "SELECT started_at, ended_at FROM autotune_attempts GROUP BY trial_id HAVING number = MAX(number)"
            ).fetchall()
        return [(datetime.fromisoformat(start), datetime.fromisoformat(end)) for start, end in found]

    def declare(self, number: int, state: str) -> None:
        """Puts a trial into another state, in our half of the database alone."""
        with closing(sqlite3.connect(self.file)) as database:
            changed = database.execute("UPDATE autotune_trials SET state = ? WHERE number = ?", (state, number))
            assert changed.rowcount == 1
            database.commit()

    def change(self, *statements: str) -> None:
        """Puts the database into the state of a crash at a certain instant."""
        with closing(sqlite3.connect(self.file)) as database:
            for statement in statements:
                assert database.execute(statement).rowcount > 0, statement
            database.commit()


TOLD_AS = {
    "feasible": "COMPLETE",
    "infeasible": "COMPLETE",
    "undecided": "COMPLETE",
    "dominated": "PRUNED",
    "failed": "PRUNED",
}


def assert_exact(trials: list[Recorded], total: int) -> None:
    """Every number from 0 once, every trial over, and Optuna of one mind with the record."""
    assert [trial.number for trial in trials] == list(range(total))
    for trial in trials:
        assert trial.told == TOLD_AS.get(trial.state), trial
        assert trial.attempts == list(range(1, len(trial.attempts) + 1)), trial


def blind_params(trials: list[Recorded]) -> list[dict[str, Any]]:
    """The settings of a study; two of one seed have the same, whatever they measure."""
    return [trial.params for trial in trials]


def files_below(folder: Path) -> Iterator[Path]:
    """Every file, in a stable order."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
