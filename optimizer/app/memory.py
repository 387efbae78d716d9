"""The memory account of a study, put together from its configuration and this host."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from optimizer.app.device_memory import smallest_gpu_bytes
from optimizer.config import StudyConfig
from optimizer.engine.memory import CPU_KV_SPACE, CannotPredict, MemoryAccount
from optimizer.tuning.prescreen import MemoryPrescreen, Records
from optimizer.tuning.settings import Settings


@dataclass(frozen=True, slots=True)
class StudyMemory:
    """What can be told of memory before a launch.

    Attributes:
        prescreen: None where nothing can be told.
        notes: Why that is so, or what the account leaves out.
    """

    prescreen: MemoryPrescreen | None
    notes: tuple[str, ...] = ()


def study_memory(config: StudyConfig, settings: Settings, records: Records) -> StudyMemory:
    """The account of a study; of a model or a device that it does not know it says so, and the study goes without.

    The simulated engine has a memory of its own invention, of which nothing is foretold; and on what device somebody
    else's engine runs is not known.

    Args:
        config: The study.
        settings: Turns parameters into what is launched.
        records: Gives the trials that correct the account.
    """
    if config.engine.kind != "vllm":
        return StudyMemory(None)
    try:
        if config.model.kind == "hub":
            raise CannotPredict(f"{config.model.name} is a hub id, and its config.json is not at hand")
        account = MemoryAccount.of_folder(Path(config.model.target), config.engine.device)
        device_bytes = settings.device_memory_bytes or smallest_gpu_bytes(config.engine.env)
    except CannotPredict as trouble:
        return StudyMemory(
            None,
            (f"cannot predict the engine's memory: {trouble.reason}; whatever does not fit is found by starting it",),
        )
    inherited = {CPU_KV_SPACE: os.environ[CPU_KV_SPACE]} if CPU_KV_SPACE in os.environ else {}
    prescreen = MemoryPrescreen(account, settings, device_bytes=device_bytes, records=records, inherited=inherited)
    return StudyMemory(prescreen, tuple(f"memory account: {note}" for note in account.shape.notes))
