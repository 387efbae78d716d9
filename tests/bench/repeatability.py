"""How far runs of one configuration lie apart on a live engine, and whether their intervals cover.

Eight runs of one configuration take turns with eight of another, each on a freshly started engine and, as in a study,
with the same lengths and other contents. The truth of a run is taken to be the median of the other runs of its
configuration; an interval covers when it holds that. It is itself off by the spread over the square root of their
number, so of 95 % intervals somewhat fewer than 95 % can be expected to cover.

Usage: python -m tests.bench.repeatability [--runs 8] [--space tiny-cpu] [--keep FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONFIGURATIONS = {
    "few at once, no prefix cache": ["--max-num-seqs", "16", "--no-enable-prefix-caching"],
    "many at once, prefix cache": ["--max-num-seqs", "64", "--enable-prefix-caching", "--block-size", "32"],
}
METRICS = (
    "output_tokens_per_s",
    "p50_e2e_ms",
    "p95_e2e_ms",
    "p99_e2e_ms",
    "p50_ttft_ms",
    "p95_ttft_ms",
    "p50_tpot_ms",
    "p95_tpot_ms",
)
_DONE = (0, 3)
"""3: a limit of the space was not shown to hold, which is no business of this."""


def main() -> None:
    """Run, and print a table for each configuration."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--space", default="tiny-cpu")
    parser.add_argument("--keep", type=Path, help="file that takes each run as a line, and gives those it has")
    given = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONFIGURATIONS}
    if given.keep is not None and given.keep.exists():
        for line in given.keep.read_text(encoding="utf-8").splitlines():
            kept = json.loads(line)
            runs[kept["configuration"]].append(kept)
    for run in range(given.runs):
        for name, flags in CONFIGURATIONS.items():
            if len(runs[name]) > run:
                continue
            measured = {"configuration": name, "load": os.getloadavg()[0], **_measured(given.space, flags)}
            runs[name].append(measured)
            if given.keep is not None:
                with given.keep.open("a", encoding="utf-8") as kept_file:
                    kept_file.write(json.dumps(measured) + "\n")
            print(f"run {run + 1} of {name}: {_value(measured, METRICS[0]):.0f} tok/s", file=sys.stderr, flush=True)
    for name, measured_runs in runs.items():
        print(f"\n{name}: {len(measured_runs)} runs, load {_range([run['load'] for run in measured_runs])}")
        print(f"{'metric':22}{'median':>10}{'lowest':>10}{'highest':>10}{'cv %':>8}{'covered':>10}{'width %':>10}")
        for metric in METRICS:
            print(_row(metric, [_figure(run, metric) for run in measured_runs]))


def _measured(space: str, flags: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "optimizer", "measure", "--space", space, "--json", "--", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in _DONE:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    view: dict[str, Any] = json.loads(done.stdout)
    return {"metrics": [metric for metric in view["metrics"] if metric["name"] in METRICS]}


def _figure(run: dict[str, Any], name: str) -> dict[str, Any]:
    return next(metric for metric in run["metrics"] if metric["name"] == name)


def _value(run: dict[str, Any], name: str) -> float:
    return float(_figure(run, name)["value"])


def _row(metric: str, figures: Sequence[dict[str, Any]]) -> str:
    values = [float(figure["value"]) for figure in figures]
    median = statistics.median(values)
    cv = 100.0 * statistics.stdev(values) / statistics.fmean(values)
    covered, widths = 0, []
    for at, figure in enumerate(figures):
        truth = statistics.median(values[:at] + values[at + 1 :])
        low = -float("inf") if figure["low"] is None else figure["low"]
        high = float("inf") if figure["high"] is None else figure["high"]
        covered += low <= truth <= high
        widths.append((high - low) / median)
    width = f"{100.0 * statistics.median(widths):.1f}"
    cells = f"{median:>10.4g}{min(values):>10.4g}{max(values):>10.4g}{cv:>8.1f}"
    return f"{metric:22}{cells}{f'{covered} of {len(values)}':>10}{width:>10}"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


if __name__ == "__main__":
    main()
