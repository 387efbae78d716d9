"""Use case `check`: a space or a command looked at before any GPU time is spent. No engine is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from optimizer.app.check_memory import Foretold, Launch, foretell
from optimizer.app.engine_choice import EngineChoice, choose_engine
from optimizer.app.flags import flag_checker
from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.config import ModelSource, ServeCommand, StudyConfig, load_space, parse_serve_command, resolve_model
from optimizer.config.flag_check import FlagChecker, FlagProblem
from optimizer.config.lint import LintFinding, LintSubject, lint, subject_of_command, subject_of_study
from optimizer.config.study_flags import study_flag_problems
from optimizer.config.study_time import Span, estimate_study_time
from optimizer.core.errors import InputError
from optimizer.core.trial import TrialRole
from optimizer.engine.memory import Device, MemoryPrediction, Range
from optimizer.report.check_view import CheckView, FindingView, FlagProblemView, MemoryView, SpanView, TimeView
from optimizer.report.secrets import hide_secrets

_COMMAND = "command"
_DEFAULTS = "defaults"
"""Trial 1 runs vLLM's own values: where they cannot start that is a result, and no mistake of the user's."""
Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What to look at: a space, a command, or a command in the light of a space's traffic and limits.

    Attributes:
        run: The space with its overrides; None when only a command is given.
        command: As it is pasted.
        engine: `vllm` or `simulated`, where there is no space to say so.
        engine_python: The Python that has vLLM.
    """

    run: RunRequest | None
    command: str | None
    engine: str = "vllm"
    engine_python: str | None = None


def check(request: CheckRequest, *, notice: Notice) -> CheckView:
    """Look at flags, settings, memory and time.

    Args:
        request: What to look at.
        notice: Is told what takes a while.

    Raises:
        InputError: There is nothing to look at, or it cannot be read.
        HostError: vLLM is not there, or its flags cannot be read.
    """
    config = None if request.run is None else study_config(request.run)
    engine = choose_engine(request.engine if config is None else config.engine.kind, request.engine_python)
    checker = flag_checker(engine, notice=notice)
    if request.command is not None:
        return _check_command(request.command, config, engine, checker)
    if request.run is None:
        raise InputError("there is nothing to check", hint="give --space SPACE, or flags: check -- --max-num-seqs 64")
    return _check_space(request.run, engine, checker)


def _check_space(run: RunRequest, engine: EngineChoice, checker: FlagChecker) -> CheckView:
    space = load_space(run.space)
    problems = study_flag_problems(checker, space, baseline=run.baseline, set_flags=run.set_flags)
    config = study_config(run, checker.tables)
    settings = settings_of(config)
    configs = {"baseline": settings.resolve(TrialRole.BASELINE, {}), _DEFAULTS: settings.resolve(TrialRole.DEFAULT, {})}
    launches = [Launch(name, found.config.flags, found.config.env) for name, found in configs.items()]
    foretold = _foretold(engine, config.model, config.engine.device, launches, settings.device_memory_bytes)
    findings = lint(_with_facts(subject_of_study(config), foretold, checker))
    return _view(f"space {config.space_name}", checker, problems, findings, foretold, _time_view(config), config.notes)


def _check_command(text: str, config: StudyConfig | None, engine: EngineChoice, checker: FlagChecker) -> CheckView:
    problems = checker.command(text, where=_COMMAND)
    try:
        command = parse_serve_command(text, origin=_COMMAND, tables=checker.tables)
        model = _model(command, config)
    except InputError as error:
        notes = (f"settings and memory are not looked at: {error.message}",)
        return _view(_COMMAND, checker, problems, [], Foretold(None, None, [], []), None, notes)
    device: Device = _device(engine) if config is None else config.engine.device
    launches = [Launch(_COMMAND, command.flags, command.env)]
    foretold = Foretold(None, None, [], ["memory is not predicted: the command names no model"])
    if model is not None:
        foretold = _foretold(engine, model, device, launches, None)
    around = replace(LintSubject(), device=device) if config is None else subject_of_study(config)
    subject = subject_of_command(command, around=_with_facts(around, foretold, checker))
    wrong = {problem.flag.lstrip("-") for problem in problems}
    findings = [finding for finding in lint(subject) if finding.where.lstrip("-") not in wrong]
    return _view(_COMMAND, checker, problems, findings, foretold, None, ())


def _model(command: ServeCommand, config: StudyConfig | None) -> ModelSource | None:
    if command.model is not None:
        return resolve_model(command.model, origin=_COMMAND)
    return None if config is None else config.model


def _device(engine: EngineChoice) -> Device:
    """What an installed vLLM computes on, told by the build of its torch."""
    return "cpu" if engine.vllm is not None and engine.vllm.torch_version.endswith("+cpu") else "gpu"


def _foretold(
    engine: EngineChoice,
    model: ModelSource,
    device: Device,
    launches: list[Launch],
    device_bytes: Callable[[], int] | None,
) -> Foretold:
    if engine.vllm is None:
        return Foretold(None, None, [], ["memory is not predicted: that of the simulated engine is invented"])
    return foretell(model, device, launches, device_bytes=device_bytes)


def _with_facts(subject: LintSubject, foretold: Foretold, checker: FlagChecker) -> LintSubject:
    """The subject with what is known of model, device and engine."""
    defaults = {flag.name: flag.default for flag in checker.catalogue.flags if flag.default is not None}
    return replace(
        subject,
        shape=foretold.shape,
        device_memory_bytes=foretold.device_bytes,
        vllm_version=checker.catalogue.version,
        vllm_defaults=defaults,
    )


def _view(
    subject: str,
    checker: FlagChecker,
    problems: list[FlagProblem],
    findings: list[LintFinding],
    foretold: Foretold,
    time: TimeView | None,
    notes: tuple[str, ...],
) -> CheckView:
    memory = [_memory_view(launch.name, prediction) for launch, prediction in foretold.launches]
    wrong = any(finding.severity == "error" for finding in findings)
    wrong = wrong or any(found.misfit is not None and found.required for found in memory)
    return CheckView(
        ok=not problems and not wrong,
        subject=subject,
        engine=checker.engine,
        problems=[_problem_view(problem) for problem in problems],
        findings=[
            FindingView(rule=f.rule, severity=f.severity, message=f.message, remedy=f.remedy, where=f.where)
            for f in findings
        ],
        memory=memory,
        time=time,
        notes=[*notes, *foretold.notes],
    )


def _problem_view(problem: FlagProblem) -> FlagProblemView:
    instead = None if problem.instead is None else hide_secrets(problem.instead)
    return FlagProblemView(
        where=problem.where, flag=problem.flag, message=hide_secrets(problem.message), instead=instead
    )


def _memory_view(name: str, prediction: MemoryPrediction) -> MemoryView:
    return MemoryView(
        setting=name,
        required=name != _DEFAULTS,
        weights_bytes=prediction.weights_bytes,
        taken_bytes=_range_view(prediction.taken_bytes),
        kv_pool_bytes=_range_view(prediction.pool_bytes),
        kv_pool_tokens=_range_view(prediction.pool_tokens),
        max_model_len=prediction.max_model_len,
        concurrency=_range_view(prediction.concurrency),
        misfit=prediction.misfit,
    )


def _time_view(config: StudyConfig) -> TimeView:
    time = estimate_study_time(config)
    return TimeView(
        trials=time.trials, trial_s=_span_view(time.trial), total_s=_span_view(time.total), dominant=time.dominant.name
    )


def _range_view(found: Range) -> SpanView:
    return SpanView(low=found.low, mid=found.mid, high=found.high)


def _span_view(span: Span) -> SpanView:
    return SpanView(low=span.low_s, mid=span.middle_s, high=span.high_s)
