"""The prefix cache against what the traffic implies."""

from __future__ import annotations

import pytest

from optimizer.metrics import hit_rate_notes


@pytest.mark.parametrize(
    ("observed", "expected"),
    [(0.83, 0.83), (0.80, 0.84), (0.76, 0.84), (0.0, 0.0), (0.04, 0.0), (None, 0.8), (0.5, None)],
)
def test_what_is_as_implied_or_unknown_is_no_note(observed: float | None, expected: float | None) -> None:
    assert hit_rate_notes(observed, expected) == ()


def test_hits_that_nobody_planned_point_to_another_run() -> None:
    (note,) = hit_rate_notes(0.55, 0.0)
    assert note.startswith("prefix-cache hits are 55% where the traffic implies 0%: another run")


def test_hits_that_are_missing_point_to_evictions() -> None:
    (note,) = hit_rate_notes(0.2, 0.83)
    assert "hits are 20% where the traffic implies 83%: blocks were thrown out" in note


def test_a_beginning_that_ends_within_a_block_loses_its_last_tokens() -> None:
    (note,) = hit_rate_notes(0.4, 0.4, shared_tokens=200, block_tokens=128)
    assert "ends 72 tokens into a KV block of 128" in note
    assert hit_rate_notes(0.4, 0.4, shared_tokens=256, block_tokens=128) == ()
    assert hit_rate_notes(0.4, 0.4, shared_tokens=2008, block_tokens=16) == ()
    assert hit_rate_notes(None, 0.4, shared_tokens=200, block_tokens=128) == ()
