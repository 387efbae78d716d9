from __future__ import annotations

import doctest
import math
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.scoring import Constraint, Verdict
from optimizer.report import secrets, wording
from optimizer.report.wording import MISSING, change, duration, interval_text, limit_text, metric_value, moment, number


@pytest.mark.parametrize("module", [wording, secrets])
def test_the_examples_in_the_docstrings_hold(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (12.0, "12"),
        (512.34, "512.3"),
        (3.456, "3.46"),
        (0.01234, "0.0123"),
        (12345.6, "12,346"),
        (-3.5, "-3.50"),
    ],
)
def test_a_figure_has_as_many_digits_as_a_person_reads(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("output_tokens_per_s", 512.34, "512.3 tok/s"),
        ("requests_per_s", 1.5, "1.50 /s"),
        ("p50_tpot_ms", 3.456, "3.46 ms"),
        ("p99_e2e_ms", 1234.4, "1,234 ms"),
        ("engine_rss_bytes", 3 * 2**30, "3.00 GiB"),
        ("kv_cache_usage_max", 0.987, "99 %"),
        ("kv_cache_tokens", 4096.0, "4,096 tokens"),
        ("window_s", 15.0, "15 s"),
        ("unheard_of", 2.0, "2"),
    ],
)
def test_a_metric_has_the_unit_that_its_name_tells(name, value, shown):
    assert metric_value(name, value) == shown


@given(
    st.sampled_from(["output_tokens_per_s", "p99_e2e_ms", "engine_rss_bytes", "spec_acceptance_rate", "x"]), st.floats()
)
def test_what_is_no_finite_number_is_never_shown_as_one(name, value):
    shown = metric_value(name, value)
    assert (shown == MISSING) == (not math.isfinite(value))
    assert "nan" not in shown
    assert "inf" not in shown


@given(st.floats(0, 1e7))
def test_a_duration_never_shows_sixty_of_a_unit(seconds):
    assert re.search(r"\b60 (s|min)\b", duration(seconds)) is None


def test_no_reference_gives_no_ratio():
    assert change(5.0, None) == change(None, 5.0) == change(5.0, 0.0) == MISSING


@pytest.mark.parametrize(
    ("verdict", "sign"), [(Verdict.FEASIBLE, "<="), (Verdict.INFEASIBLE, ">"), (Verdict.UNDECIDED, "?")]
)
def test_a_limit_shows_its_verdict(verdict, sign):
    constraint = Constraint("p99_ttft_ms", 200.0, 190.0, 180.0, None, -0.05, verdict)
    assert limit_text(constraint) == f"P99 TTFT 190 ms {sign} 200 ms"
    assert interval_text(constraint) == "180 ms to unbounded"


def test_a_moment_says_its_zone():
    assert moment(datetime(2026, 3, 1, 9, 30, tzinfo=UTC)) == "2026-03-01 09:30:00 UTC"
    assert moment(None) == MISSING
