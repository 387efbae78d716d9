"""The options of `run`, each with its help."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

SpaceOption: TypeAlias = Annotated[
    str, typer.Option("--space", metavar="SPACE", help="Built-in search space (see `spaces`) or path of a space file.")
]
StudyNameOption: TypeAlias = Annotated[
    str | None, typer.Option("--study", metavar="NAME", help="Name of the study; that of the space by default.")
]
TrialsOption: TypeAlias = Annotated[
    int | None, typer.Option("--trials", metavar="N", help="Total of the study, resumed trials included.")
]
TimeBudgetOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--time-budget", metavar="TIME", help="Start no trial that would end later: 90s, 30m, 2h, 1h30m."),
]
BaselineOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--baseline", metavar="COMMAND", help='Your present setting, as you start it: "vllm serve M --flags".'
    ),
]
ObjectiveOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="NAME",
        help="What is made best: throughput, request_throughput, goodput, capacity, tokens_per_joule, or a latency's "
        "p99 or mean, such as p99_ttft.",
    ),
]
SloOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--slo", metavar="LIMIT", help="A limit, such as p99_e2e_ms=800 or 'p99_e2e<=1.0x'; may be repeated."),
]
WorkloadOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--workload", metavar="WORKLOAD", help="Built-in workload (see `workloads`) or path of a file."),
]
ModelOption: TypeAlias = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="Local path or hub id, in place of the space's model.")
]
SetOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="FLAG=VALUE", help="Fixes an engine flag; may be repeated.")
]
EngineOption: TypeAlias = Annotated[
    str | None, typer.Option("--engine", metavar="ENGINE", help="vllm, or simulated (for tests and demos).")
]
EnginePythonOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--engine-python", metavar="PYTHON", help="Python of the environment that vLLM is installed in."),
]
PortRangeOption: TypeAlias = Annotated[
    str | None, typer.Option("--port-range", metavar="LOW-HIGH", help="Ports that engines may listen on.")
]
SeedOption: TypeAlias = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of search and traffic.")]
SamplerOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--sampler",
        metavar="NAME",
        help="Search strategy: gp (the default), tpe, optuna-gp, random, grid or one-at-a-time.",
    ),
]
StopBelowGainOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--stop-below-gain", metavar="SHARE", help="End when less of the best, such as 1%, is expected of a trial."
    ),
]
EvaluatorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--evaluator",
        metavar="COMMAND",
        help="Measures each trial in place of an engine of ours: JSON on stdin, JSON out (docs/evaluator.md).",
    ),
]
EvaluatorTimeoutOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--evaluator-timeout", metavar="TIME", help="Longest run of the evaluator; 1h by default."),
]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Show space, first proposals and time needed; start nothing.")
]
