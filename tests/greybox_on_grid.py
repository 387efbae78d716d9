"""The grey box on the real grid of `tiny-cpu`: corrected by a few of its runs, it foretells the others."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from optimizer.app.request import RunRequest, study_config
from optimizer.config import StudyConfig
from optimizer.core.record import ParamValue
from optimizer.core.trial import TrialState
from optimizer.engine.memory import MemoryAccount
from optimizer.tuning.greybox import GreyBox, LaunchFlags, ServingFacts, facts_of
from optimizer.tuning.strategy import Estimate, Seen

GRID = Path(__file__).parent / "data/tiny_cpu_grid/grid.jsonl"
DEVICE_BYTES = round(23.5 * 2**30)
LIMITS = {"p95_e2e_ms": 6000.0, "p99_e2e_ms": 6500.0, "p99_tpot_ms": 120.0, "p99_ttft_ms": 3000.0}
NOISE_SD = 0.08
BASELINE: Mapping[str, ParamValue] = {
    "max-num-seqs": 16,
    "enable-prefix-caching": False,
    "block-size": 128,
    "engine-memory": 1.7,
    "max-num-batched-tokens": 2048,
}
"""The runs that stand for a cautious user's setting."""


@cache
def tiny_config() -> StudyConfig:
    """The study that the grid belongs to."""
    return study_config(RunRequest(space="tiny-cpu"))


@cache
def tiny_facts() -> ServingFacts:
    """What is known of it before any trial."""
    config = tiny_config()
    account = MemoryAccount.of_folder(Path(config.model.target), "cpu")
    fixed = config.resolve({}, device_memory_bytes=DEVICE_BYTES)
    return facts_of(config.workload, account, device_bytes=DEVICE_BYTES, fixed_flags=fixed.flags, env=fixed.env)


@cache
def tiny_flags() -> LaunchFlags:
    """From parameters to flags."""
    fixed = tiny_config().resolve({}, device_memory_bytes=DEVICE_BYTES).flags
    return LaunchFlags(tiny_config().space, fixed, device_memory_bytes=DEVICE_BYTES)


@cache
def measured_runs() -> tuple[Seen, ...]:
    """Every run of the grid that was measured, in the order of measuring."""
    records = [json.loads(line) for line in GRID.read_text(encoding="utf-8").splitlines()]
    return tuple(
        seen_run(number, record["params"], record["metrics"])
        for number, record in enumerate(records)
        if record["metrics"] is not None
    )


def seen_run(number: int, params: Mapping[str, ParamValue], metrics: Mapping[str, float | None]) -> Seen:
    """A trial as a strategy sees it; throughput is the objective."""

    def estimate(name: str, limit: float = 1.0) -> Estimate:
        return Estimate(math.log((metrics[name] or 0.0) / limit), NOISE_SD)

    return Seen(
        number,
        params,
        TrialState.FEASIBLE,
        value=estimate("output_tokens_per_s"),
        limits={name: estimate(name, limit) for name, limit in LIMITS.items()},
        metrics=metrics,
    )


def tiny_grey_box() -> GreyBox:
    """The model of the grid's engine before any trial."""
    return GreyBox(tiny_facts(), tiny_flags(), metric="output_tokens_per_s", maximise=True)


def is_baseline(run: Seen) -> bool:
    """Whether a run is one of the cautious user's setting."""
    return all(run.params.get(name) == value for name, value in BASELINE.items())


@dataclass(frozen=True, slots=True)
class Foretelling:
    """How well one quantity of the other runs was foretold, as means over draws.

    Attributes:
        rank_correlation: Spearman's.
        residual_sd: Standard deviation of the differences, in log units.
        spread_sd: The same of what was to be foretold.
        weight: That the model gave itself.
    """

    rank_correlation: float
    residual_sd: float
    spread_sd: float
    weight: float


def foretelling(others: int, draws: int) -> dict[str, Foretelling]:
    """By quantity: the baseline and so many other runs correct the model, and it foretells all the rest."""
    runs = measured_runs()
    baselines = [row for row, run in enumerate(runs) if is_baseline(run)]
    rng = np.random.default_rng(0)
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for draw in range(draws):
        first = baselines[draw % len(baselines)]
        known = [first, *rng.choice([row for row in range(len(runs)) if row != first], others, replace=False)]
        left = [run for row, run in enumerate(runs) if row not in known]
        for key, figures in _foretold([runs[row] for row in known], left).items():
            found.setdefault(key, []).append(figures)
    return {key: Foretelling(*np.mean(figures, axis=0).tolist()) for key, figures in found.items()}


def _foretold(known: Sequence[Seen], left: Sequence[Seen]) -> dict[str, tuple[float, float, float, float]]:
    fitted = tiny_grey_box().fitted(known)
    if fitted is None:
        raise AssertionError("nothing was fitted")
    said = fitted.raw([tiny_flags()(run.params) for run in left])
    figures = {}
    for key, foretold in said.items():
        told = [run.value if key == "value" else run.limits[key] for run in left]
        seen = np.array([estimate.mean for estimate in told if estimate is not None])
        rank = float(spearmanr(foretold, seen)[0])
        figures[key] = (rank, float(np.std(seen - foretold)), float(np.std(seen)), fitted.goodness[key].weight)
    return figures
