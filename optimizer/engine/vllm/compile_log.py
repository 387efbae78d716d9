"""Whether vLLM still compiles while it serves: it says so in its log, and what is measured then says nothing."""

from __future__ import annotations

import re
from pathlib import Path

_COMPILES = re.compile(
    rb"during inference: .*This causes a latency spike"  # the JIT monitor: Triton and CuTe kernels
    rb"|Dynamo bytecode transform time|Compiling a graph for|Directly load .*compil|torch\.compile took"
    rb"|Capturing CUDA graphs"
)


class CompileWatch:
    """Reads an engine's log as it grows.

    Args:
        log: The engine's log.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read_bytes = log.stat().st_size if log.exists() else 0

    def compiled(self) -> bool:
        """Whether a line about compiling has been written since this was last asked, or since it was made."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
        except FileNotFoundError:
            return False
        # The last line may be half written; it is read again.
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return _COMPILES.search(whole) is not None
