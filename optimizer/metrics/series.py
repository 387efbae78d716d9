"""The course of a run: engine, GPU and CPU second by second, on the clock of the load.

One row is one second, counted from the start of the measuring window, so that rows lie beside those of the request
samples. What was not observed in that second is empty, never 0.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from optimizer.core.measurement import FloatArray, RoleUse
from optimizer.metrics.exposition import Reading
from optimizer.metrics.gpu_usage import GpuSample
from optimizer.metrics.threads import ROLES

STEP_S = 1.0
_LONGEST_GAP_S = 3.0
"""Between readings further apart nothing is told: a straight line through the gap would be made up."""

_RATES = {
    "output_tokens_per_s": "generation_tokens",
    "prompt_tokens_per_s": "prompt_tokens",
    "requests_per_s": "requests_done",
    "preemptions_per_s": "preemptions",
}
_RATIOS = {
    "prefix_cache_hit_rate": ("prefix_hits", "prefix_queries", 1.0),
    "spec_acceptance_rate": ("accepted_tokens", "drafted_tokens", 1.0),
    "engine_itl_mean_ms": ("itl_s", "itl_count", 1000.0),
}
_GAUGES = ("running", "waiting", "waiting_capacity", "waiting_deferred", "kv_cache_usage")
_GPU_COLUMNS: Mapping[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "gpu_util": ("util", lambda cards: sum(cards) / len(cards)),
    "gpu_mem_util": ("mem_util", lambda cards: sum(cards) / len(cards)),
    "gpu_memory_used_bytes": ("used_bytes", sum),
    "gpu_power_w": ("power_w", sum),
    "gpu_sm_clock_mhz": ("sm_clock_mhz", min),
    "gpu_mem_clock_mhz": ("mem_clock_mhz", min),
}
_CPU_COLUMNS = tuple(f"{role}_{what}" for role in ROLES for what in ("cpu_cores", "thread_cores"))

COLUMNS = ("t_s", "phase", *_RATES, *_RATIOS, *_GAUGES, *_GPU_COLUMNS, "gpu_throttled", *_CPU_COLUMNS)
"""`t_s` is the start of the second; `phase` is `ramp`, `window` or `drain`; `…_thread_cores` is the busiest thread."""

RolePoint = tuple[float, Sequence[RoleUse]]
"""When, and what each role used since the point before."""
_Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Observations:
    """Everything that was sampled, in order of time, on one monotonic clock.

    Attributes:
        readings: Of /metrics.
        cpu: Of threads.
        gpu: Of the cards.
        start_s: Start of the window.
        end_s: Its end.
    """

    readings: Sequence[tuple[float, Reading]]
    cpu: Sequence[RolePoint]
    gpu: Sequence[GpuSample]
    start_s: float
    end_s: float


def series(seen: Observations) -> dict[str, FloatArray]:
    """Column name (all of `COLUMNS` but `phase`) to one value a second, NaN where nothing was observed."""
    times = [at for at, _ in seen.readings] + [at for at, _ in seen.cpu] + [sample.at_s for sample in seen.gpu]
    if not times or not math.isfinite(seen.start_s):
        return {name: np.array([], dtype=np.float64) for name in COLUMNS if name != "phase"}
    first = math.floor((min(times) - seen.start_s) / STEP_S)
    last = math.floor((max(times) - seen.start_s) / STEP_S)
    offsets = np.arange(first, last + 2, dtype=np.float64) * STEP_S
    edges = offsets + seen.start_s
    columns = {"t_s": offsets[:-1]} | _engine_columns(seen.readings, edges)
    columns |= {
        name: _binned(points, edges) for name, points in (_gpu_points(seen.gpu) | _cpu_points(seen.cpu)).items()
    }
    return columns


def write_series(path: Path, seen: Observations) -> None:
    """Writes a gzipped CSV with one row a second, in one step: the file is whole or absent.

    Args:
        path: Where to; its folder exists. By custom it ends in `.csv.gz`.
        seen: What was sampled.

    Raises:
        OSError: It cannot be written.
    """
    columns = series(seen)
    window_s = seen.end_s - seen.start_s
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row, at_s in enumerate(columns["t_s"]):
        phase = "ramp" if at_s < 0 else "window" if at_s < window_s else "drain"
        writer.writerow([phase if name == "phase" else _figure(float(columns[name][row])) for name in COLUMNS])
    draft = path.with_name(path.name + ".tmp")
    draft.write_bytes(gzip.compress(text.getvalue().encode("utf-8"), mtime=0))
    draft.replace(path)


def _figure(value: float) -> str:
    return f"{value:.10g}" if math.isfinite(value) else ""


def _engine_columns(readings: Sequence[tuple[float, Reading]], edges: FloatArray) -> dict[str, FloatArray]:
    gained = {
        name: _gained(_points(readings, name), edges)
        for name in {*_RATES.values(), *(name for part, whole, _ in _RATIOS.values() for name in (part, whole))}
    }
    columns = {column: gained[name] / STEP_S for column, name in _RATES.items()}
    for column, (part, whole, factor) in _RATIOS.items():
        base = np.where(gained[whole] > 0.0, gained[whole], np.nan)
        columns[column] = gained[part] / base * factor
    return columns | {name: _binned(_points(readings, name), edges) for name in _GAUGES}


def _points(readings: Sequence[tuple[float, Reading]], name: str) -> _Points:
    values = ((at, reading.values.get(name, math.nan)) for at, reading in readings)
    return [(at, value) for at, value in values if math.isfinite(value)]


def _gained(points: _Points, edges: FloatArray) -> FloatArray:
    """How far a counter went up between each edge and the next: readings in between are joined by straight lines."""
    if len(points) < 2:
        return np.full(edges.size - 1, np.nan)
    at, values = np.array(points).T
    # A counter that fell was reset, and has since gone up from zero.
    steps = np.where(np.diff(values) >= 0.0, np.diff(values), values[1:])
    level = np.interp(edges, at, np.concatenate(([0.0], np.cumsum(steps))), left=np.nan, right=np.nan)
    after = np.clip(np.searchsorted(at, edges), 1, at.size - 1)
    between = (at[after - 1] < edges) & (edges < at[after])
    in_a_gap = between & (at[after] - at[after - 1] > _LONGEST_GAP_S)
    return np.diff(np.where(in_a_gap, np.nan, level))


def _binned(points: _Points, edges: FloatArray) -> FloatArray:
    """Mean of the values that fall between each edge and the next; NaN where none does."""
    found = np.full(edges.size - 1, np.nan)
    if not points:
        return found
    at, values = np.array(points, dtype=np.float64).T
    which = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, found.size - 1)
    counts = np.bincount(which, minlength=found.size)
    sums = np.bincount(which, weights=values, minlength=found.size)
    seen = counts > 0
    found[seen] = sums[seen] / counts[seen]
    return found


def _gpu_points(samples: Sequence[GpuSample]) -> dict[str, _Points]:
    points: dict[str, _Points] = {name: [] for name in (*_GPU_COLUMNS, "gpu_throttled")}
    for sample in samples:
        for name, (attribute, merge) in _GPU_COLUMNS.items():
            cards = [getattr(card, attribute) for card in sample.cards]
            if cards and None not in cards:
                points[name].append((sample.at_s, float(merge(cards))))
        held = [bool(card.throttled_by) for card in sample.cards if card.throttled_by is not None]
        if held:
            points["gpu_throttled"].append((sample.at_s, float(any(held))))
    return points


def _cpu_points(cpu: Sequence[RolePoint]) -> dict[str, _Points]:
    points: dict[str, _Points] = {name: [] for name in _CPU_COLUMNS}
    for at_s, roles in cpu:
        for use in roles:
            points[f"{use.role}_cpu_cores"].append((at_s, use.cores))
            points[f"{use.role}_thread_cores"].append((at_s, use.busiest.cores))
    return points
