"""What is looked at: one configuration, or a whole search space, and all that is known around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from optimizer.config.baseline import ServeCommand
from optimizer.config.study_config import StudyConfig
from optimizer.core.engine_config import FlagValue
from optimizer.engine.memory import ModelShape
from optimizer.load import Workload
from optimizer.objectives import Objective, Slo
from optimizer.search_spaces import SearchSpace


@dataclass(frozen=True, slots=True)
class LintSubject:
    """A configuration or space. What is None is not known, and no rule that needs it fires.

    Attributes:
        flags: Canonical flag to value: those of a command line, or those that every engine of a study gets.
        space: What is searched on top of them; None for one configuration.
        env: Environment of the engine.
        left_out: Names of flags that stood on the command line and are never launched.
        workload: The traffic.
        objective: What is sought.
        slos: The limits.
        shape: The model's, from its `config.json`.
        device: What the engine computes on.
        device_memory_bytes: Memory of one card, or what vLLM finds on a host for `device` cpu.
        devices: How many cards there are.
        pin_cpus: Whether engine and load generator are kept on different cores.
        trials: Total of the study.
        vllm_version: Of the installed vLLM.
        vllm_defaults: Canonical flag to the default of the installed vLLM's parser.
    """

    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    space: SearchSpace | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    workload: Workload | None = None
    objective: Objective | None = None
    slos: tuple[Slo, ...] = ()
    shape: ModelShape | None = None
    device: Literal["gpu", "cpu"] = "gpu"
    device_memory_bytes: int | None = None
    devices: int | None = None
    pin_cpus: bool | None = None
    trials: int | None = None
    vllm_version: str | None = None
    vllm_defaults: Mapping[str, FlagValue] | None = None


def subject_of_study(config: StudyConfig) -> LintSubject:
    """A whole study. What is known of model, device and vLLM is for the caller to add with `dataclasses.replace`."""
    return LintSubject(
        flags=config.fixed_flags,
        space=config.space,
        env=config.engine.env,
        workload=config.workload,
        objective=config.objective,
        slos=config.slos,
        device=config.engine.device,
        pin_cpus=config.engine.pin_cpus,
        trials=config.trials,
    )


def subject_of_command(command: ServeCommand, *, around: LintSubject | None = None) -> LintSubject:
    """One command line.

    Args:
        command: The command.
        around: Whose workload, limits, model and device it is seen with; None when nothing is known.
    """
    known = around or LintSubject()
    return replace(
        known, flags=command.flags, env=command.env, left_out=command.dropped, space=None, trials=None, pin_cpus=None
    )
