from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.cli.values import parse_duration_s, parse_port_range
from optimizer.core.errors import InputError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("45", 45),
        ("1H2M3S", 3723),
        (" 5m ", 300),
    ],
)
def test_spans_of_time(text, seconds):
    assert parse_duration_s(text, "--time-budget") == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5m", "soon", "30m1h", "1d", "nan", "1e9999s", "m"])
def test_what_is_no_span_of_time_is_refused(text):
    with pytest.raises(InputError, match="--time-budget") as caught:
        parse_duration_s(text, "--time-budget")
    assert "1h30m" in str(caught.value.hint)


@given(st.integers(0, 99), st.integers(0, 999), st.integers(1, 999))
def test_parts_of_a_span_add_up(hours, minutes, seconds):
    assert parse_duration_s(f"{hours}h{minutes}m{seconds}s", "-t") == hours * 3600 + minutes * 60 + seconds


def test_ranges_of_ports():
    assert parse_port_range("20000-20100", "--port-range") == (20000, 20100)
    assert parse_port_range("20000-20000", "--port-range") == (20000, 20000)


@pytest.mark.parametrize("text", ["", "20000", "20100-20000", "80-90", "60000-70000", "a-b", "1-2-3"])
def test_what_is_no_range_of_ports_is_refused(text):
    with pytest.raises(InputError, match="--port-range"):
        parse_port_range(text, "--port-range")
