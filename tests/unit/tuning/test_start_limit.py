"""The deadline of a start, told from the starts before it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.record import AttemptRecord, ProcessIdentity, StageTiming
from optimizer.core.trial import Stage
from optimizer.tuning.start_limit import FLOOR_S, learned_start_limit_s, starts_s

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seen_s", "configured_s", "limit_s"),
    [
        ([], 900.0, 900.0),
        ([5.0], 900.0, 60.0),
        ([5.0, 40.0, 20.0], 900.0, 150.0),
        ([400.0], 900.0, 900.0),
        ([5.0], 20.0, 20.0),
    ],
)
def test_three_times_the_slowest_and_half_a_minute_within_bounds(seen_s, configured_s, limit_s):
    assert learned_start_limit_s(seen_s, configured_s) == limit_s


@given(st.lists(st.floats(0, 2000), min_size=1), st.floats(1, 2000))
def test_no_start_that_was_seen_would_have_been_cut_off(seen_s, configured_s):
    limit_s = learned_start_limit_s(seen_s, configured_s)
    assert limit_s <= configured_s
    assert limit_s >= min(configured_s, FLOOR_S)
    assert limit_s >= min(configured_s, max(seen_s))


def attempt(*stages: tuple[Stage, float | None]) -> AttemptRecord:
    timings = tuple(StageTiming(stage, NOW, duration_s) for stage, duration_s in stages)
    return AttemptRecord(1, ProcessIdentity("here", "boot", 1, 1), NOW, None, "f", stages=timings)


def test_only_engines_that_became_ready_tell_how_long_that_takes():
    attempts = [
        attempt((Stage.LAUNCHING, 12.0), (Stage.WARMING_UP, 3.0), (Stage.MEASURING, 9.0), (Stage.STOPPING, 1.0)),
        attempt((Stage.LAUNCHING, 900.0), (Stage.STOPPING, 1.0)),
        attempt((Stage.LAUNCHING, None)),
        attempt((Stage.LAUNCHING, 14.0), (Stage.WARMING_UP, None)),
        attempt(),
    ]
    assert starts_s(attempts) == [12.0, 14.0]
