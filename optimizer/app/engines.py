"""How engines are launched: from which program, and under which guard."""

from __future__ import annotations

import json
from pathlib import Path

from optimizer.app.engine_choice import EngineChoice
from optimizer.config import EngineSection
from optimizer.core.errors import InputError
from optimizer.engine.launch import EngineLauncher, EngineProgram, warm_spare_command, warm_spare_environment
from optimizer.host.cpus import CpuSplit
from optimizer.host.ledger import EngineLedger
from optimizer.host.supervisor import Supervisor

_SPARE_LIMIT_S = 300.0
_BYTE_VOCABULARY = 256


def vocabulary_size(model: str) -> int:
    """Token ids below this exist in the model; 256 when its `config.json` is not at hand.

    Raises:
        InputError: The file is no JSON object.
    """
    file = Path(model) / "config.json"
    if not file.is_file():
        return _BYTE_VOCABULARY
    try:
        size = dict(json.loads(file.read_text(encoding="utf-8"))).get("vocab_size")
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{file}: this is no model configuration: {error}", hint="give --model another folder"
        ) from None
    return size if isinstance(size, int) else _BYTE_VOCABULARY


async def start_launcher(
    choice: EngineChoice,
    section: EngineSection,
    *,
    model: str,
    guard_log: Path,
    split: CpuSplit,
    port_range: tuple[int, int] | None = None,
    ledger: EngineLedger | None = None,
) -> EngineLauncher:
    """Start the guard (a warm spare where the space wants one) and build the launcher on it.

    A spare fixes at its start what is read while importing: a variable that only some trials set would come too late
    for it, so the caller switches `warm_start` off when the baseline has an environment of its own.

    Args:
        choice: The engine.
        section: How the space wants it launched.
        model: What it serves, for the size of its vocabulary.
        guard_log: Where the guard's own stderr goes.
        split: Which cores are the engine's; taken before this process was pinned to the client's.
        port_range: Lowest and highest port to use.
        ledger: Keeps what a later run needs to find the engine, should this one be killed.

    Raises:
        HostError: The guard does not come up.
    """
    threads = _cpu_threads(section, split)
    warm = section.warm_start and choice.vllm is not None
    program = EngineProgram(
        head=() if warm else choice.display_head,
        display_head=choice.display_head,
        cpus=split.engine if section.pin_cpus else (),
        cpu_threads=threads,
        vocab_size=vocabulary_size(model),
    )
    start = (
        _start_spare(choice, section, guard_log, threads, ledger)
        if warm
        else Supervisor.start(log=guard_log, ledger=ledger)
    )
    supervisor = await start
    return EngineLauncher(supervisor, program, port_range=port_range)


async def _start_spare(
    choice: EngineChoice,
    section: EngineSection,
    guard_log: Path,
    cpu_threads: int | None,
    ledger: EngineLedger | None,
) -> Supervisor:
    return await Supervisor.start(
        log=guard_log,
        command=warm_spare_command(choice.python),
        env=warm_spare_environment(section.env, cpu_threads),
        limit_s=_SPARE_LIMIT_S,
        ledger=ledger,
    )


def _cpu_threads(section: EngineSection, split: CpuSplit) -> int | None:
    """OpenMP threads of an engine on the CPU: one per core it is kept on, for vLLM's own binding is switched off."""
    if section.device != "cpu":
        return None
    return len(split.engine)
