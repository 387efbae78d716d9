"""What the benchmark writes: one line for each study, so that a run can be stopped and resumed."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from optimizer.core.record import ParamValue

TOLERANCE = 0.05
"""Of the tolerant count: so far beyond a limit the product's own verdicts may err."""


class Pick(BaseModel):
    """A setting and what it truly is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    params: dict[str, ParamValue] = Field(description="The setting.")
    value: float | None = Field(description="Its objective without noise, larger is better; null if it crashes.")
    excess: float | None = Field(description="Share by which the worst limit is exceeded; at most 0 if all hold.")

    def regret(self, optimum: float, tolerance: float = 0.0) -> float:
        """1 - value / optimum; 1 where the setting truly breaks a limit by more than the tolerance."""
        if self.value is None or self.excess is None or self.excess > tolerance:
            return 1.0
        return max(1.0 - self.value / optimum, 0.0)


class Mark(BaseModel):
    """A study after so many trials."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    best: Pick | None = Field(description="The best setting that was measured and found feasible.")
    recommended: Pick | None = Field(description="What the study recommends.")
    crashes: int = Field(description="Launches that crashed.")
    launches: int = Field(description="Launches.")
    ask_s: float = Field(description="Mean seconds of an ask so far.")
    ask_s_max: float = Field(description="The longest ask so far, in seconds.")


class Row(BaseModel):
    """One study."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    situation: str = Field(description="Its kind.")
    seed: int = Field(description="That drew machine, workload, limits and noise; and the search's own.")
    strategy: str = Field(description="What was compared.")
    trials: int = Field(description="Launches.")
    optimum: float = Field(description="Objective of the best setting that the search for the optimum found.")
    best_launched: float | None = Field(description="Best true objective among the truly feasible ones launched.")
    states: str = Field(description="One letter a trial: feasible, infeasible, undecided, x for failed.")
    marks: dict[int, Mark] = Field(description="By the number of trials.")
    claim: str = Field(description="What it is to show, and how many variants were tried before.")
    digest: str = Field(description="Of the situations' equations.")
    versions: str = Field(description="Of what ran.")

    @property
    def key(self) -> tuple[str, int, str]:
        """What there is one row of."""
        return self.situation, self.seed, self.strategy


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """The rows of files that there are; of two with one key the one with more trials, then the later."""
    rows: dict[tuple[str, int, str], Row] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            row = Row.model_validate_json(line)
            known = rows.get(row.key)
            if known is None or row.trials >= known.trials:
                rows[row.key] = row
    return list(rows.values())


def append_row(path: Path, row: Row) -> None:
    """One more line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(row.model_dump_json() + "\n")


def best_known(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    """By situation and seed the best true objective that anything has found: no regret is below 0."""
    known: dict[tuple[str, int], float] = {}
    for row in rows:
        picks = [p for mark in row.marks.values() for p in (mark.best, mark.recommended) if p is not None]
        values = [p.value for p in picks if p.value is not None and p.excess is not None and p.excess <= 0.0]
        key = row.situation, row.seed
        known[key] = max(known.get(key, row.optimum), row.optimum, row.best_launched or row.optimum, *values)
    return known


def versions() -> str:
    """Of what bears on the numbers."""
    packages = ("optuna", "numpy", "scipy")
    return ", ".join(
        (f"python {platform.python_version()}", *(f"{name} {importlib.metadata.version(name)}" for name in packages))
    )
