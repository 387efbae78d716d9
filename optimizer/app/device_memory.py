"""How much memory an engine's device has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

from optimizer.core.errors import HostError
from optimizer.engine.memory import CannotPredict
from optimizer.host.gpus import VISIBLE_DEVICES, open_nvml, visible_gpus


def smallest_gpu_bytes(env: Mapping[str, str]) -> Callable[[], int]:
    """The memory of the smallest card that an engine may use: all of one study are of one kind.

    Args:
        env: What the engine gets on top of the inherited environment.

    Raises:
        CannotPredict: No card can be seen here.
    """
    allowed = env.get(VISIBLE_DEVICES, os.environ.get(VISIBLE_DEVICES))
    cards: tuple[int, ...] = ()
    with contextlib.suppress(HostError):
        nvml = open_nvml()
        if nvml is not None:
            with contextlib.closing(nvml):
                cards = tuple(gpu.total_bytes for gpu in visible_gpus(nvml, allowed).gpus)
    if not cards:
        raise CannotPredict("the GPU's memory is not known on this host")
    smallest = min(cards)
    return lambda: smallest
