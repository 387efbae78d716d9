"""What `check` foretells of memory: of a study's first two launches, or of one command's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from optimizer.app.device_memory import smallest_gpu_bytes
from optimizer.config import ModelSource
from optimizer.core.engine_config import FlagValue
from optimizer.engine.memory import CPU_KV_SPACE, CannotPredict, Device, MemoryAccount, MemoryPrediction, ModelShape
from optimizer.host.memory import engine_memory_bytes


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch to foretell: what a person calls it, its flags, and its environment."""

    name: str
    flags: Mapping[str, FlagValue]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Foretold:
    """What is known of a model's memory on this host.

    Attributes:
        shape: The model's; None when its config.json is not at hand, or cannot be read.
        device_bytes: Memory of one device; None when it is not known.
        launches: Each launch that could be foretold.
        notes: What could not, and why.
    """

    shape: ModelShape | None
    device_bytes: int | None
    launches: list[tuple[Launch, MemoryPrediction]]
    notes: list[str]


def foretell(
    model: ModelSource, device: Device, launches: list[Launch], *, device_bytes: Callable[[], int] | None = None
) -> Foretold:
    """Predicts launches of a model on this host's device; what cannot be predicted is told in a note.

    Args:
        model: The model.
        device: What it runs on.
        launches: The launches.
        device_bytes: Reads the device's memory; None finds it here.
    """
    shape: ModelShape | None = None
    try:
        if model.kind == "hub":
            raise CannotPredict(f"{model.name} is a hub id, and its config.json is not at hand")
        account = MemoryAccount.of_folder(Path(model.target), device)
        shape = account.shape
        env = launches[0].env if launches else {}
        read = device_bytes or (engine_memory_bytes if device == "cpu" else smallest_gpu_bytes(env))
        total = read()
    except CannotPredict as trouble:
        return Foretold(shape, None, [], [f"memory is not predicted: {trouble.reason}"])
    foretold = Foretold(shape, total, [], [])
    inherited = {CPU_KV_SPACE: os.environ[CPU_KV_SPACE]} if CPU_KV_SPACE in os.environ else {}
    for launch in launches:
        try:
            prediction = account.predict(launch.flags, {**inherited, **launch.env}, device_bytes=total)
        except CannotPredict as trouble:
            foretold.notes.append(f"memory of {launch.name} is not predicted: {trouble.reason}")
        else:
            foretold.launches.append((launch, prediction))
    return foretold
