"""Which engine a study is of: an installed vLLM, or the simulated one."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from optimizer.engine.vllm.argv import SERVER_MODULE
from optimizer.engine.vllm.installation import VllmInstallation, find_vllm

_SIMULATED_MODULE = "optimizer.engine.simulated"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine of a study.

    Attributes:
        kind: `vllm` or `simulated`.
        version: Of the engine.
        vllm: The installation; None for the simulated engine.
    """

    kind: str
    version: str
    vllm: VllmInstallation | None

    @property
    def python(self) -> str:
        """The Python that runs the engine."""
        return sys.executable if self.vllm is None else self.vllm.python

    @property
    def display_head(self) -> tuple[str, ...]:
        """The words that start it on a command line."""
        return (self.python, "-m", _SIMULATED_MODULE if self.vllm is None else SERVER_MODULE)


def choose_engine(kind: str, engine_python: str | None) -> EngineChoice:
    """Find the engine.

    Raises:
        HostError: vLLM is not installed where it is looked for.
    """
    if kind == "simulated":
        return EngineChoice(kind, "1", None)
    installation = find_vllm(engine_python)
    return EngineChoice(kind, installation.version, installation)
