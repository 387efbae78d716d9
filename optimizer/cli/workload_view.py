"""What `workloads` prints."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from optimizer.app.workloads import HIT_RATE_BLOCK_TOKENS, Lengths, WorkloadLine, WorkloadSummary
from optimizer.report.layout import heading, labelled, plain_table


def print_workloads(console: Console, workloads: list[WorkloadLine]) -> None:
    """Prints each workload with what it stands for."""
    for workload in workloads:
        console.print(Text.assemble((workload.name, "bold"), f"  {workload.arrivals}; {workload.requests}"))
        if workload.description:
            console.print(Padding(Text(workload.description), (0, 0, 0, 4), expand=False))


def print_workload(console: Console, workload: WorkloadSummary) -> None:
    """Prints how requests arrive, how long they are, and what they share."""
    console.print(Text(workload.line.name, style="bold"))
    if workload.line.description:
        console.print(Text(workload.line.description))
    rows = [("arrivals", workload.line.arrivals), ("requests", workload.line.requests)]
    if workload.rows is not None:
        rows.append(("file", f"{workload.rows} requests{_left_out(workload.left_out)}"))
    rows.append((f"hit rate implied at blocks of {HIT_RATE_BLOCK_TOKENS}", _hit_rate(workload.hit_rate)))
    samples = ", ".join(f"{prompt} + {output}" for prompt, output in workload.samples)
    rows.append(("first requests under seed 0", f"{samples} (prompt + output tokens)"))
    labelled(console, rows)
    guessed = ", text guessed at four bytes a token" if workload.guessed else ""
    heading(console, f"lengths in tokens{guessed}")
    table = plain_table("", "mean", "P50", "P99", "longest")
    for name, lengths in _lengths_of(workload).items():
        table.add_row(name, f"{lengths.mean:.1f}", str(lengths.p50), str(lengths.p99), str(lengths.longest))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def workloads_json(workloads: list[WorkloadLine]) -> str:
    """`workloads --json`."""
    return json.dumps({"workloads": [asdict(workload) for workload in workloads]}, indent=2)


def workload_json(workload: WorkloadSummary) -> str:
    """`workloads W --json`: the whole workload, and what it comes to."""
    shown = {
        "name": workload.line.name,
        "tokens": {name: asdict(lengths) for name, lengths in _lengths_of(workload).items()},
        "tokens_guessed": workload.guessed,
        "expected_prefix_hit_rate": {"block_tokens": HIT_RATE_BLOCK_TOKENS, "rate": workload.hit_rate},
        "samples": [{"prompt_tokens": prompt, "output_tokens": output} for prompt, output in workload.samples],
        "rows": workload.rows,
        "left_out": workload.left_out,
        "workload": workload.data,
    }
    return json.dumps(shown, indent=2)


def _lengths_of(workload: WorkloadSummary) -> dict[str, Lengths]:
    return {"prompt": workload.prompt, "output": workload.output, "request": workload.request}


def _left_out(count: int) -> str:
    return f"; {count} conversations without a question and its answer are left out" if count else ""


def _hit_rate(rate: float | None) -> str:
    return "not known: it depends on what the file repeats" if rate is None else f"{rate:.1%}"
