"""Whether a study ran on the simulated engine, and the words that keep its figures from being taken for vLLM's."""

from __future__ import annotations

from collections.abc import Mapping

from optimizer.core.record import StudyRecord

SIMULATED = "SIMULATED ENGINE: no vLLM ran. Times are computed from a formula and say nothing about a real server."


def is_simulated(study: StudyRecord) -> bool:
    """Whether its trials are no measurements of a real engine."""
    engine = study.config.get("engine")
    return isinstance(engine, Mapping) and engine.get("kind") == "simulated"
