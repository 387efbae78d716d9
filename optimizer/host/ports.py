"""A free TCP port on the loopback address."""

from __future__ import annotations

import random
import socket

from optimizer.core.errors import HostError, InputError

LOOPBACK = "127.0.0.1"


def parse_port_range(text: str, *, origin: str) -> tuple[int, int]:
    """Read `LOW-HIGH` (or one port).

    Raises:
        InputError: Not two port numbers in order.
    """
    low, is_range, high = text.partition("-")
    try:
        ports = int(low), int(high if is_range else low)
    except ValueError:
        ports = (0, 0)
    if not 0 < ports[0] <= ports[1] < 65536:
        raise InputError(f"{origin}: '{text}' is no port range", hint="give LOW-HIGH, such as 8100-8199")
    return ports


def free_port(port_range: tuple[int, int] | None = None) -> int:
    """A port that nothing listens on right now; the engine may still lose it to another process before it binds.

    Args:
        port_range: Lowest and highest port to use; None leaves the choice to the kernel.

    Raises:
        HostError: Every port is taken.
    """
    candidates = (
        [0] if port_range is None else random.sample(range(port_range[0], port_range[1] + 1), k=_span(port_range))
    )
    for port in candidates:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    where = "any port" if port_range is None else f"ports {port_range[0]}-{port_range[1]}"
    raise HostError(f"no free TCP port on {LOOPBACK}: tried {where}", hint="free a port, or give --port-range LOW-HIGH")


def _span(port_range: tuple[int, int]) -> int:
    return port_range[1] - port_range[0] + 1
