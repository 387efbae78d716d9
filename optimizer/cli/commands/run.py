"""`run`: start a study, or go on with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.cli import run_options as options
from optimizer.cli.console import progress_console, result_console
from optimizer.cli.invocation import program, this_command
from optimizer.cli.options import StorageOption
from optimizer.cli.values import parse_duration_s, parse_port_range
from optimizer.core.errors import Interrupted, NothingFeasible
from optimizer.core.study_end import StudyEnd

if TYPE_CHECKING:
    from optimizer.app.request import RunRequest
    from optimizer.app.run_study import StudyOutcome


def run(
    space: options.SpaceOption,
    study: options.StudyNameOption = None,
    storage: StorageOption = None,
    trials: options.TrialsOption = None,
    time_budget: options.TimeBudgetOption = None,
    baseline: options.BaselineOption = None,
    objective: options.ObjectiveOption = None,
    slo: options.SloOption = None,
    workload: options.WorkloadOption = None,
    model: options.ModelOption = None,
    set_flags: options.SetOption = None,
    engine: options.EngineOption = None,
    engine_python: options.EnginePythonOption = None,
    port_range: options.PortRangeOption = None,
    seed: options.SeedOption = 0,
    sampler: options.SamplerOption = None,
    stop_below_gain: options.StopBelowGainOption = None,
    evaluator: options.EvaluatorOption = None,
    evaluator_timeout: options.EvaluatorTimeoutOption = None,
    dry_run: options.DryRunOption = False,
) -> None:
    """Tune: start a study, or go on with it where it stopped."""
    from optimizer.app.request import RunRequest

    request = RunRequest(
        space=space,
        study=study,
        storage=storage,
        trials=trials,
        time_budget_s=None if time_budget is None else parse_duration_s(time_budget, "--time-budget"),
        baseline=baseline,
        objective=objective,
        slos=tuple(slo or ()),
        workload=workload,
        model=model,
        set_flags=tuple(set_flags or ()),
        engine=engine,
        engine_python=engine_python,
        port_range=None if port_range is None else parse_port_range(port_range, "--port-range"),
        seed=seed,
        sampler=sampler,
        least_gain=stop_below_gain,
        evaluator=evaluator,
        evaluator_timeout_s=None
        if evaluator_timeout is None
        else parse_duration_s(evaluator_timeout, "--evaluator-timeout"),
    )
    if dry_run:
        _show_plan(request)
    else:
        _report(_watch(request), storage)


def _show_plan(request: RunRequest) -> None:
    from optimizer.app.plan import plan_study
    from optimizer.cli.plan_view import print_plan

    print_plan(result_console(), plan_study(request))


def _watch(request: RunRequest) -> StudyOutcome:
    from optimizer.app.run_study import run_study
    from optimizer.report.progress import make_progress

    try:
        with make_progress(progress_console()) as progress:
            return run_study(request, progress)
    except (Interrupted, KeyboardInterrupt) as stop:
        message = stop.message if isinstance(stop, Interrupted) else "interrupted"
        raise Interrupted(message, hint=f"go on with: {this_command()}") from stop


def _report(outcome: StudyOutcome, storage: str | None) -> None:
    from optimizer.report.closing import Closing, print_closing
    from optimizer.report.commands import StudyCommands

    shown_storage = None if storage is None else outcome.storage_display
    closing = Closing(
        study=outcome.study,
        trials=outcome.trials,
        total_trials=outcome.total_trials,
        ended=outcome.ended,
        storage_display=outcome.storage_display,
        record_folder=Path(outcome.record_folder),
        commands=StudyCommands(program(), outcome.study.name, shown_storage, this_command()),
        recommendation=outcome.recommendation,
    )
    print_closing(result_console(), closing)
    if closing.best is None:
        raise _nothing_feasible(outcome)


def _nothing_feasible(outcome: StudyOutcome) -> NothingFeasible:
    """Whatever ended the run: a script that exports the winner next must not go on."""
    name = outcome.study.name
    if outcome.ended is StudyEnd.TIME_BUDGET:
        return NothingFeasible(
            f"no trial of study {name} meets its limits so far, and the time budget is used up",
            hint=f"go on with: {this_command()}, or give more --time-budget",
        )
    return NothingFeasible(
        f"no trial of study {name} meets its limits",
        hint="relax the limit that binds (--slo, with another --study), or give more --trials",
    )
