"""The record of a study and its trials, as storage keeps it and reports read it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from optimizer.core.engine_config import EngineConfig, JsonValue
from optimizer.core.failure import Failure
from optimizer.core.scoring import Score
from optimizer.core.trial import Stage, TrialRole, TrialState

ParamValue: TypeAlias = bool | int | float | str
"""The value of one searched parameter."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that no later one can be mistaken for, on this host or another.

    Attributes:
        host: Host name, for messages.
        boot_id: The kernel's id of this boot.
        pid: Process id.
        start_ticks: Start time in clock ticks since boot, from `/proc/PID/stat`.
    """

    host: str
    boot_id: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class StageTiming:
    """One stage of an attempt: when it began (UTC) and how long it took; None while it lasts."""

    stage: Stage
    started_at: datetime
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One try at a trial. A trial has more than one after an interruption or a fault of the host.

    Attributes:
        number: 1 for the first.
        owner: The optimizer process that ran it.
        started_at: UTC.
        ended_at: UTC, or None while it runs (or when its owner died).
        folder: Where the engine log and the request samples lie.
        argv: How the engine was started; without API key.
        stages: In the order they were entered.
        failure: Why it failed, or None.
    """

    number: int
    owner: ProcessIdentity
    started_at: datetime
    ended_at: datetime | None
    folder: str
    argv: tuple[str, ...] = ()
    stages: tuple[StageTiming, ...] = ()
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """All that is known of one trial.

    Attributes:
        number: 0 is the baseline, 1 vLLM's defaults, then the search; see `confirmation` for its repeats.
        params: The searched parameters it sets. The baseline's flags outside the space stand in `config` alone.
        config: What was launched; None when it never came to that.
        metrics: Metric name to value; None where the engine did not report it. Empty without a measurement.
        score: None without a measurement.
        failure: The last attempt's, when the trial failed; None otherwise.
        notes: Remarks for a person, such as what was dropped from a pasted command.
    """

    study: str
    number: int
    role: TrialRole
    state: TrialState
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    config: EngineConfig | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    score: Score | None = None
    failure: Failure | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> float | None:
        """The objective's value, or None without a measurement."""
        return None if self.score is None else self.score.value


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study as it was created; it never changes afterwards.

    Attributes:
        name: Unique in its database.
        created_at: UTC.
        identity: What trials of one study must share (space, model, workload, objective, limits, engine version,
            protocol number): a resume with another identity is refused.
        config: The whole study configuration as plain data, without secrets.
        objective: Metric name of the objective.
        maximise: Its direction.
        versions: Package name to version of what measured.
        host: What the machine is: cores, memory, GPUs.
    """

    name: str
    created_at: datetime
    identity: Mapping[str, JsonValue]
    config: Mapping[str, JsonValue]
    objective: str
    maximise: bool
    versions: Mapping[str, str] = field(default_factory=dict)
    host: Mapping[str, JsonValue] = field(default_factory=dict)


def best_trial(trials: list[TrialRecord], *, maximise: bool) -> TrialRecord | None:
    """The feasible trial with the best value; the earlier of two equals. None when no trial is feasible.

    This is the only place that picks a best trial: a failed, infeasible or undecided one never is, nor is one whose
    value is no finite number, nor a repeat on held-out traffic.
    """
    feasible = [
        trial
        for trial in trials
        if trial.state is TrialState.FEASIBLE
        and trial.role is not TrialRole.CONFIRM
        and trial.value is not None
        and math.isfinite(trial.value)
    ]
    if not feasible:
        return None
    sign = 1.0 if maximise else -1.0
    return max(feasible, key=lambda trial: (sign * (trial.value or 0.0), -trial.number))
