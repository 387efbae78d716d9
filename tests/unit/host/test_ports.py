"""A free port: what a range may look like, and what is said when nothing in it is free."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.errors import HostError, InputError
from optimizer.host.ports import LOOPBACK, free_port, parse_port_range

PORTS = st.integers(1, 65535)


@pytest.fixture
def taken() -> Iterator[tuple[int, int]]:
    """Three ports in a row that something listens on; the one above them is free."""
    for low in range(20000, 60000, 100):
        with ExitStack() as sockets:
            try:
                for port in range(low, low + 3):
                    listener = sockets.enter_context(socket.socket())
                    listener.bind((LOOPBACK, port))
                    listener.listen()
                with socket.socket() as above:
                    above.bind((LOOPBACK, low + 3))
            except OSError:
                continue
            yield low, low + 2
            return


@given(PORTS, PORTS)
def test_a_range_in_order_is_read_and_any_other_refused(low, high):
    if low <= high:
        assert parse_port_range(f"{low}-{high}", origin="--port-range") == (low, high)
    else:
        with pytest.raises(InputError):
            parse_port_range(f"{low}-{high}", origin="--port-range")


def test_one_port_is_a_range_of_one():
    assert parse_port_range("8100", origin="--port-range") == (8100, 8100)


@pytest.mark.parametrize("text", ["", "-", "8100-", "-8100", "0", "0-10", "8100-65536", "a-b", "8100-8199-8200", "8.5"])
def test_what_is_no_range_is_refused_with_its_text_and_origin(text):
    with pytest.raises(InputError) as refused:
        parse_port_range(text, origin="--port-range")
    assert f"--port-range: '{text}'" in refused.value.message
    assert "8100-8199" in str(refused.value.hint)


def test_the_kernels_choice_can_be_bound():
    with socket.socket() as probe:
        probe.bind((LOOPBACK, free_port()))


def test_the_one_free_port_of_a_range_is_found(taken):
    low, high = taken
    assert free_port((low, high + 1)) == high + 1


def test_a_range_that_is_taken_is_named(taken):
    with pytest.raises(HostError, match=f"ports {taken[0]}-{taken[1]}") as refused:
        free_port(taken)
    assert "--port-range" in str(refused.value.hint)
