"""When the client spoils a run."""

from __future__ import annotations

import pytest

from optimizer.core.client_health import ClientHealth


def health(lag_ms: float | None, late_ms: float | None, processes: int = 1, busiest: float = 0.8) -> ClientHealth:
    return ClientHealth(lag_ms, late_ms, 0.9, busiest, processes)


@pytest.mark.parametrize(
    ("lag_ms", "late_ms", "limit_ms", "why"),
    [
        (39.0, 39.0, 800.0, None),
        (41.0, 1.0, 800.0, "its event loop was late by 41.0 ms (P99), and 40.0 ms"),
        (1.0, 41.0, 800.0, "requests left late by 41.0 ms (P99), and 40.0 ms"),
        (1.9, 1.9, 10.0, None),
        (2.1, 0.1, 10.0, "late by 2.1 ms"),
        (900.0, 900.0, None, None),
        (None, None, 10.0, None),
    ],
)
def test_it_does_when_it_is_late_by_a_twentieth_of_the_tightest_limit(
    lag_ms: float | None, late_ms: float | None, limit_ms: float | None, why: str | None
) -> None:
    said = health(lag_ms, late_ms).spoiled(limit_ms)
    assert said is None if why is None else said is not None and why in said


def test_it_says_what_did_the_work() -> None:
    assert "(2 load processes, 0.9 cores)" in str(health(100.0, 0.0, processes=2).spoiled(100.0))


@pytest.mark.parametrize("limit_ms", [None, 800.0])
def test_a_process_that_has_no_cpu_left_spoils_a_run_with_or_without_limits(limit_ms: float | None) -> None:
    said = health(1.0, 1.0, processes=2, busiest=0.86).spoiled(limit_ms)
    assert said is not None and "its busiest process used 0.86 of a core" in said
