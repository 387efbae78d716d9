"""Which engine a study is of: an installed vLLM, the simulated one, or somebody else's."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from optimizer.config.evaluator import EXTERNAL
from optimizer.core.errors import InputError
from optimizer.engine.vllm.argv import SERVER_MODULE
from optimizer.engine.vllm.installation import VllmInstallation, find_vllm

_SIMULATED_MODULE = "optimizer.engine.simulated"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine of a study.

    Attributes:
        kind: `vllm`, `simulated` or `external`.
        version: Of the engine.
        vllm: The installation; None for any other engine.
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


SOMEBODY_ELSES = EngineChoice(EXTERNAL, "not known", None)
"""What stands behind an external evaluator."""


def choose_engine(kind: str, engine_python: str | None) -> EngineChoice:
    """Find the engine.

    Raises:
        InputError: The engine is somebody else's, and no evaluator was given.
        HostError: vLLM is not installed where it is looked for.
    """
    if kind == EXTERNAL:
        raise InputError(
            "engine.kind is external: nothing here can start such an engine",
            hint='give the command that measures a trial: run --evaluator "CMD" (docs/evaluator.md)',
        )
    if kind == "simulated":
        return EngineChoice(kind, "1", None)
    installation = find_vllm(engine_python)
    return EngineChoice(kind, installation.version, installation)
