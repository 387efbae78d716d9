"""`measure`: one configuration, or a server that runs, loaded once and shown in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from optimizer.cli import run_options as options
from optimizer.cli.console import progress_console, result_console, write_result
from optimizer.cli.options import JsonOption
from optimizer.cli.pasted import pasted
from optimizer.cli.values import parse_duration_s, parse_port_range
from optimizer.core.errors import HostError, InputError, NothingFeasible

if TYPE_CHECKING:
    from optimizer.app.measure import Watch
    from optimizer.app.traffic import TrafficOptions
    from optimizer.report.measure_view import MeasureView

_SWEEP = "--sweep"


class MeasureCommand(TyperCommand):
    """Lets `--sweep` stand alone: levels that are not given are chosen."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Reads the words, with `auto` put behind a bare `--sweep`."""
        end = args.index("--") if "--" in args else len(args)
        if _SWEEP in args[:end]:
            after = args.index(_SWEEP) + 1
            if after >= end or args[after].startswith("-"):
                args = [*args[:after], "auto", *args[after:]]
        return super().parse_args(ctx, args)


def measure(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- FLAGS]", help="Flags of vLLM, or a whole `vllm serve …`, in place of the baseline."
        ),
    ] = None,
    space: Annotated[
        str | None, typer.Option("--space", metavar="SPACE", help="Launch one engine, as this space describes it.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="Load a server that runs already.")
    ] = None,
    requests: Annotated[int | None, typer.Option("--requests", metavar="N", help="Requests to count.")] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", help="Requests in flight; with --rate at most so many.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="R", help="Arrivals per second, Poisson (an open loop).")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="TIME", help="Length of the window: 90s, 5m.")
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(_SWEEP, metavar="[LOW:HIGH[:STEPS]]", help="Saturation curve over so many in flight, or rates."),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="All requests at once: batch throughput, no figure of a server in use.")
    ] = False,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="capacity",
            help="With --space: search the highest arrival rate that keeps every limit, in one engine life.",
        ),
    ] = None,
    workload: options.WorkloadOption = None,
    model: options.ModelOption = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            "--slo", metavar="LIMIT", help="A limit in milliseconds, such as p99_e2e_ms=800; may be repeated."
        ),
    ] = None,
    set_flags: options.SetOption = None,
    engine: options.EngineOption = None,
    engine_python: options.EnginePythonOption = None,
    port_range: options.PortRangeOption = None,
    api_key_env: Annotated[
        str | None,
        typer.Option("--api-key-env", metavar="VARIABLE", help="With --endpoint: the variable that holds its key."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", metavar="FOLDER", help="With --endpoint: where the model's tokenizer.json lies."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --endpoint: load a server that is not on this host.")
    ] = False,
    seed: options.SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Measure one configuration, or a server that runs (exit code 3 when a limit is not shown to hold)."""
    of_space = {
        "--objective": objective,
        "--set": set_flags,
        "--engine": engine,
        "--engine-python": engine_python,
        "--port-range": port_range,
    }
    of_endpoint = {"--api-key-env": api_key_env, "--tokenizer": tokenizer, "--yes": yes}
    misplaced = of_space if endpoint is not None else of_endpoint
    _one_subject(space, endpoint, command, [option for option, value in misplaced.items() if value])
    traffic = _traffic(requests, concurrency, rate, duration)
    limits, trouble = tuple(slo or ()), None
    if endpoint is not None:
        from optimizer.app.measure_endpoint import USUAL_WORKLOAD, EndpointRequest, measure_endpoint

        request = EndpointRequest(
            endpoint,
            model,
            workload or USUAL_WORKLOAD,
            limits,
            traffic,
            sweep,
            offline,
            api_key_env,
            tokenizer,
            seed,
            yes,
        )
        outcome = measure_endpoint(request, _watch())
        view, trouble = outcome.view, outcome.trouble
    else:
        from optimizer.app.measure import MeasureRequest, measure_space
        from optimizer.app.request import RunRequest

        run = RunRequest(
            space=space or "",
            baseline=pasted(command),
            objective=objective,
            slos=limits,
            workload=workload,
            model=model,
            set_flags=tuple(set_flags or ()),
            engine=engine,
            engine_python=engine_python,
            port_range=None if port_range is None else parse_port_range(port_range, "--port-range"),
            seed=seed,
        )
        view = measure_space(MeasureRequest(run, traffic, sweep, offline), _watch())
    _report(view, trouble, as_json=json)


def _one_subject(space: str | None, endpoint: str | None, command: list[str] | None, misplaced: list[str]) -> None:
    """Refuse neither or both, and options of the other.

    Raises:
        InputError: They do not go together.
    """
    if space is None and endpoint is None:
        raise InputError("there is nothing to measure", hint="give --space SPACE [-- FLAGS], or --endpoint URL")
    if space is not None and endpoint is not None:
        raise InputError("--space and --endpoint exclude each other: one launches a server, the other one runs already")
    if endpoint is not None and command:
        raise InputError(
            f"{command[0]}: flags have no effect on a server that runs already", hint="measure them with --space"
        )
    if misplaced:
        raise InputError(f"{misplaced[0]} goes with {'--endpoint' if endpoint is None else '--space'} alone")


def _traffic(requests: int | None, concurrency: int | None, rate: float | None, duration: str | None) -> TrafficOptions:
    from optimizer.app.traffic import TrafficOptions

    duration_s = None if duration is None else parse_duration_s(duration, "--duration")
    return TrafficOptions(requests, concurrency, rate, duration_s)


def _watch() -> Watch:
    from optimizer.app.measure import Watch
    from optimizer.report.measure_progress import MeasureProgress

    progress = MeasureProgress(progress_console())
    return Watch(progress.say, progress.window)


def _report(view: MeasureView, trouble: HostError | None, *, as_json: bool) -> None:
    from optimizer.report.measure_view import print_measure

    if as_json:
        write_result(view.model_dump_json(indent=2))
    else:
        print_measure(result_console(), view)
    if trouble is not None:
        raise trouble
    if view.verdict not in (None, "feasible"):
        raise NothingFeasible(f"the limits are not shown to hold: {view.verdict}")
