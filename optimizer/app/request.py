"""What a person asks of `run`, before anything is read or started."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from optimizer.config import StudyConfig, build_study_config, load_space
from optimizer.config.evaluator import Evaluator, parse_evaluator
from optimizer.config.flag_tables import STATIC_TABLES, FlagTables
from optimizer.core.errors import InputError
from optimizer.host.cpus import split_cpus
from optimizer.host.memory import engine_memory_bytes
from optimizer.tuning.settings import Settings

ENGINES = ("vllm", "simulated")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The options of `run`; None and () leave what the space file says.

    Attributes:
        space: Built-in name or path of a space file.
        study: Name of the study; the space's by default.
        storage: Database URL or SQLite path.
        trials: Total of the study.
        time_budget_s: For this run.
        baseline: Serve command, as pasted.
        objective: Name of the objective.
        slos: Limits that replace the space's.
        workload: Built-in name or path of a workload file.
        model: Bundled name, path or hub id.
        set_flags: `flag=value` each.
        engine: `vllm` or `simulated`.
        engine_python: The Python that has vLLM.
        port_range: Lowest and highest port for the engine.
        seed: Of proposals and traffic.
        sampler: Name of the search strategy.
        least_gain: Percentage of the best that a trial must be expected to bring.
        evaluator: Command that measures each trial in place of an engine of our own.
        evaluator_timeout_s: Longest run of it.
    """

    space: str
    study: str | None = None
    storage: str | None = None
    trials: int | None = None
    time_budget_s: float | None = None
    baseline: str | None = None
    objective: str | None = None
    slos: tuple[str, ...] = ()
    workload: str | None = None
    model: str | None = None
    set_flags: tuple[str, ...] = ()
    engine: str | None = None
    engine_python: str | None = None
    port_range: tuple[int, int] | None = None
    seed: int = 0
    sampler: str | None = None
    least_gain: str | None = None
    evaluator: str | None = None
    evaluator_timeout_s: float | None = None


def study_config(request: RunRequest, tables: FlagTables = STATIC_TABLES) -> StudyConfig:
    """Read the space and apply the request's overrides.

    Args:
        request: The options.
        tables: How many words each flag of a command line takes.

    Raises:
        InputError: An option or the space file is wrong.
    """
    if request.engine is not None and request.engine not in ENGINES:
        raise InputError(f"--engine {request.engine}: not known", hint=f"allowed: {', '.join(ENGINES)}")
    config = build_study_config(
        load_space(request.space),
        study=request.study,
        model=request.model,
        slos=request.slos,
        objective=request.objective,
        baseline=request.baseline,
        set_flags=request.set_flags,
        trials=request.trials,
        seed=request.seed,
        workload=request.workload,
        sampler=request.sampler,
        least_gain=request.least_gain,
        evaluator=_evaluator(request),
        tables=tables,
    )
    section = config.engine
    if request.engine is not None and request.engine != section.kind:
        section = section.model_copy(update={"kind": request.engine})
    notes = config.notes
    if section.warm_start and config.baseline is not None and config.baseline.env:
        section = section.model_copy(update={"warm_start": False})
        names = ", ".join(config.baseline.env)
        notes += (f"each engine starts cold: the baseline sets {names}, which a warm spare would read too early",)
    return replace(config, engine=section, notes=notes)


def _evaluator(request: RunRequest) -> Evaluator | None:
    if request.evaluator is None:
        if request.evaluator_timeout_s is not None:
            raise InputError("--evaluator-timeout is given without --evaluator", hint="leave it out")
        return None
    for option, value in (("--engine", request.engine), ("--port-range", request.port_range)):
        if value is not None:
            raise InputError(
                f"{option} and --evaluator are both given, but an evaluator starts its engines itself",
                hint="give one of the two",
            )
    return parse_evaluator(request.evaluator, timeout_s=request.evaluator_timeout_s)


def settings_of(config: StudyConfig) -> Settings:
    """The configuration on this host. Memory is declared in GiB only for an engine on the CPU.

    To be called before this process is pinned: the memory is that of the engine's cores, not of the client's.
    """
    if config.engine.device != "cpu":
        return Settings(config)
    return Settings(config, functools.partial(engine_memory_bytes, core=split_cpus().engine[0]))
