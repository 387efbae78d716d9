"""What a study would do, without doing any of it: `run --dry-run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.app.search import first_proposals
from optimizer.app.study_time import study_time
from optimizer.config import StudyConfig
from optimizer.config.study_time import MOST_LOADS, StudyTime, estimate_study_time
from optimizer.core.record import ParamValue
from optimizer.core.samplers import SAMPLERS
from optimizer.core.trial import TrialRole
from optimizer.engine.vllm.argv import serve_command
from optimizer.load import Workload
from optimizer.objectives.objective import CAPACITY
from optimizer.tuning.settings import Settings, role_of

SHOWN_PROPOSALS = 5


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """One of the first trials, with the command that would serve it, and how it came to be proposed."""

    number: int
    role: TrialRole
    params: Mapping[str, ParamValue]
    argv: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """What `--dry-run` shows. `parameters` are name and range; `time` is that of the trials still to run."""

    space_name: str
    study: str
    model: str
    parameters: list[tuple[str, str]]
    rules: list[str]
    workload: str
    objective: str
    slos: tuple[str, ...]
    sampler: str
    trials: int
    proposals: list[PlannedTrial]
    time: StudyTime
    notes: tuple[str, ...]


def plan_study(request: RunRequest) -> StudyPlan:
    """Lay a study out. Starts no engine, records nothing, needs no vLLM.

    The search proposals shown are those of an empty history: they are what the study would try first, as far as that
    does not depend on results.

    Raises:
        InputError: The request is wrong.
    """
    config = study_config(request)
    settings = settings_of(config)
    return StudyPlan(
        space_name=config.space_name,
        study=config.study,
        model=config.model.target,
        parameters=[(name, parameter.domain) for name, parameter in config.space.parameters.items()],
        rules=[rule.text for rule in config.space.rules],
        workload=describe_workload(config.workload),
        objective=f"{'highest' if config.objective.maximise else 'lowest'} {config.objective.metric}",
        slos=tuple(str(slo) for slo in config.slos),
        sampler=f"{config.sampler}: {SAMPLERS[config.sampler]}",
        trials=config.trials,
        proposals=_planned(config, settings),
        time=study_time(config, request.storage),
        notes=(*config.notes, *memory_note(config), *evaluator_note(config), *capacity_note(config)),
    )


def estimate_trial_s(config: StudyConfig) -> float:
    """Seconds a trial is expected to take before one has been timed."""
    return estimate_study_time(config).trial.middle_s


def memory_note(config: StudyConfig) -> tuple[str, ...]:
    """Says what 'defaults' means where the default memory cannot be a trial."""
    if config.engine.memory_gib is None:
        return ()
    return (
        f"trial 1 runs vLLM's defaults save for memory: it gets {config.engine.memory_gib:g} GiB, "
        "since vLLM's own default is 0.92 of all the memory of this host",
    )


def evaluator_note(config: StudyConfig) -> tuple[str, ...]:
    """Says who measures, where it is not we."""
    if config.evaluator is None:
        return ()
    limit = f"{config.evaluator.timeout_s:g} s"
    return (f"each trial is measured by `{config.evaluator.command}`, which has {limit} for it",)


def capacity_note(config: StudyConfig) -> tuple[str, ...]:
    """Says that a trial is many load runs, where it seeks a capacity."""
    if config.objective.metric != CAPACITY or config.evaluator is not None:
        return ()
    return (
        f"each trial seeks its capacity: one engine is loaded at up to {MOST_LOADS - 1} rates, one after the other; "
        "until trials were timed, the longer time is an upper bound",
    )


def describe_workload(workload: Workload) -> str:
    """The traffic in one line."""
    sharing = workload.shared_prefix
    shared = "" if sharing is None else f"{sharing.words}, then "
    return f"{workload.name}: {workload.arrivals.words}; {shared}{workload.request_words}"


def _planned(config: StudyConfig, settings: Settings) -> list[PlannedTrial]:
    planned = []
    for proposal in first_proposals(config, settings, min(SHOWN_PROPOSALS, config.trials)):
        role = role_of(proposal.number)
        argv = tuple(serve_command("python", settings.resolve(role, proposal.params).config))
        planned.append(PlannedTrial(proposal.number, role, proposal.params, argv, proposal.notes))
    return planned
