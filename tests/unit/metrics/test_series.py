"""The course of a run, second by second."""

from __future__ import annotations

import csv
import gzip
import io
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.measurement import RoleUse
from optimizer.host.gpu_activity import GpuActivity
from optimizer.metrics.exposition import Reading
from optimizer.metrics.gpu_usage import GpuSample
from optimizer.metrics.series import COLUMNS, Observations, RolePoint, series, write_series
from tests.unit.metrics.observed import role

Readings = list[tuple[float, Reading]]


def reading(at_s: float, **values: float) -> tuple[float, Reading]:
    return at_s, Reading(values, None)


def seen(
    readings: Readings, *, cpu: list[RolePoint] | None = None, gpu: list[GpuSample] | None = None, end_s: float = 3.0
) -> Observations:
    """A window that opens at 100 s."""
    return Observations(readings, cpu or [], gpu or [], 100.0, 100.0 + end_s)


def told(values: object) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 9) for value in values]  # type: ignore[attr-defined]


def test_counters_become_rates_of_whole_seconds() -> None:
    readings = [reading(98.5 + step / 2, generation_tokens=100.0 * step) for step in range(10)]
    columns = series(seen(readings))
    assert told(columns["t_s"]) == [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]
    # Of the first second only the second half was seen, and of the last nothing but its first instant.
    assert told(columns["output_tokens_per_s"]) == [None, 200.0, 200.0, 200.0, 200.0, None]


def test_a_reset_is_no_negative_rate() -> None:
    values = [10.0, 20.0, 5.0, 15.0]
    columns = series(seen([reading(100.0 + step, preemptions=value) for step, value in enumerate(values)]))
    assert told(columns["preemptions_per_s"]) == [10.0, 5.0, 10.0, None]


def test_a_gap_between_readings_is_not_filled_in() -> None:
    readings = [reading(at, generation_tokens=10.0 * at) for at in (100.0, 101.0, 106.0, 107.0)]
    assert told(series(seen(readings))["output_tokens_per_s"]) == [10.0, *[None] * 5, 10.0, None]


def test_ratios_are_those_of_the_second() -> None:
    readings = [
        reading(100.0, prefix_hits=0.0, prefix_queries=0.0, itl_s=0.0, itl_count=0.0),
        reading(101.0, prefix_hits=30.0, prefix_queries=40.0, itl_s=1.0, itl_count=50.0),
        reading(102.0, prefix_hits=30.0, prefix_queries=40.0, itl_s=1.0, itl_count=50.0),
    ]
    columns = series(seen(readings))
    assert told(columns["prefix_cache_hit_rate"]) == [0.75, None, None]
    assert told(columns["engine_itl_mean_ms"]) == [20.0, None, None]
    assert told(columns["spec_acceptance_rate"]) == [None, None, None]


def test_gauges_are_means_and_a_missing_one_is_empty_and_never_zero() -> None:
    readings = [reading(100.1, running=2.0), reading(100.6, running=4.0), reading(101.1), reading(102.1, running=0.0)]
    columns = series(seen(readings))
    assert told(columns["running"]) == [3.0, None, 0.0]
    assert told(columns["waiting"]) == [None, None, None]


def test_cards_and_threads_stand_beside_the_engine() -> None:
    card = GpuActivity(0.5, 0.2, 10, 300.0, None, 1900.0, 3200.0, frozenset({"power cap"}))
    other = GpuActivity(0.7, 0.4, 30, 100.0, None, 1500.0, 3200.0, frozenset())
    uses: tuple[RoleUse, ...] = (role("api_server", 0.9, total=1.1),)
    columns = series(
        seen([reading(100.2, running=1.0)], cpu=[(100.4, uses)], gpu=[GpuSample(100.3, (card, other))], end_s=1.0)
    )
    expected = {
        "gpu_util": 0.6,
        "gpu_memory_used_bytes": 40.0,
        "gpu_power_w": 400.0,
        "gpu_sm_clock_mhz": 1500.0,
        "gpu_throttled": 1.0,
        "api_server_thread_cores": 0.9,
        "api_server_cpu_cores": 1.1,
        "worker_cpu_cores": None,
    }
    assert {name: told(columns[name])[0] for name in expected} == expected


def test_what_one_of_two_cards_does_not_report_is_empty() -> None:
    sample = GpuSample(100.0, (GpuActivity(power_w=300.0), GpuActivity()))
    assert told(series(seen([], gpu=[sample]))["gpu_power_w"]) == [None]


def test_the_file_has_a_row_a_second_and_is_the_same_twice(tmp_path: Path) -> None:
    readings = [reading(99.0 + step, generation_tokens=7.0 * step, running=1.5) for step in range(6)]
    path, again = tmp_path / "telemetry.csv.gz", tmp_path / "again.csv.gz"
    write_series(path, seen(readings, end_s=2.5))
    write_series(again, seen(readings, end_s=2.5))
    assert path.read_bytes() == again.read_bytes()
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode())))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["t_s"], row["phase"]) for row in rows] == [
        ("-1", "ramp"),
        ("0", "window"),
        ("1", "window"),
        ("2", "window"),
        ("3", "drain"),
        ("4", "drain"),
    ]
    assert (rows[1]["output_tokens_per_s"], rows[1]["running"], rows[1]["gpu_util"]) == ("7", "1.5", "")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["again.csv.gz", "telemetry.csv.gz"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_series(tmp_path / "absent" / "telemetry.csv.gz", seen([]))


def test_nothing_observed_is_a_file_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.csv.gz"
    write_series(path, seen([]))
    assert gzip.decompress(path.read_bytes()).decode() == ",".join(COLUMNS) + "\n"


@given(
    gaps=st.lists(st.floats(0.05, 2.9), min_size=1, max_size=30),
    tokens=st.lists(st.integers(0, 1000), min_size=31, max_size=31),
    first_s=st.floats(95.0, 101.0),
)
def test_no_token_is_told_twice(gaps: list[float], tokens: list[int], first_s: float) -> None:
    """What whole seconds gained never exceeds what the counter did."""
    at_s, total, readings = first_s, 0.0, []
    for gap, more in zip([0.0, *gaps], tokens, strict=False):
        at_s, total = at_s + gap, total + more
        readings.append(reading(at_s, generation_tokens=total))
    rates = series(seen(readings))["output_tokens_per_s"]
    gained = total - tokens[0]
    assert sum(rate for rate in rates if math.isfinite(rate)) <= gained + 1e-6
    assert all(rate >= 0.0 for rate in rates if math.isfinite(rate))
