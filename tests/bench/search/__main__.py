"""The search benchmark.

    python -m tests.bench.search run --situations tuning --strategies tpe,gp --seeds 0-23 --trials 30
    python -m tests.bench.search table build/bench_search/rows.jsonl --against one-at-a-time

A run that was stopped goes on with the same command. docs/search-benchmark.md says what is counted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.bench.search.catalogue import SETS, chosen, set_of
from tests.bench.search.one_study import one_study
from tests.bench.search.optimum import CACHE
from tests.bench.search.rows import Row, append_row, read_rows
from tests.bench.search.setups import SETUPS
from tests.bench.search.tables import print_tables

OUT = CACHE / "rows.jsonl"


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line and do it."""
    args = _parser().parse_args(words)
    args.do(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.search", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="run studies that the file does not hold yet")
    run.add_argument("--situations", default="tuning", help=f"names, or {' or '.join(SETS)}; default tuning")
    run.add_argument("--strategies", default="random,tpe", help=f"of {', '.join(SETUPS)}")
    run.add_argument("--seeds", default="0-23", help="places in the set's own range of seeds, such as 0-23 or 4")
    run.add_argument("--trials", type=int, default=30)
    run.add_argument("--jobs", type=int, default=1, help="processes beside this one; 0 runs the studies in it")
    run.add_argument("--out", type=Path, default=OUT)
    run.add_argument("--claim", default="", help="what it is to show, and how many variants were tried before")
    run.set_defaults(do=_run)
    table = commands.add_parser("table", help="print the tables of files of rows")
    table.add_argument("files", type=Path, nargs="*", default=[OUT])
    table.add_argument("--against", default="", help="a strategy that all others are compared with, seed by seed")
    table.add_argument("--pick", choices=("recommended", "best"), default="recommended")
    table.set_defaults(do=lambda args: print_tables(read_rows(args.files), against=args.against, pick=args.pick))
    return parser


def _run(args: argparse.Namespace) -> None:
    names, strategies = chosen(args.situations), args.strategies.split(",")
    unknown = [strategy for strategy in strategies if strategy not in SETUPS]
    if unknown:
        sys.exit(f"no strategy {unknown[0]!r}; there are {', '.join(SETUPS)}")
    if not args.claim and any(name in SETS["judging"].situations for name in names):
        sys.exit("judging seeds are used once for each claim: state it, and the variants tried before, with --claim")
    done = {row.key: row for row in read_rows([args.out])}
    todo = [
        (name, set_of(name).seeds[place], strategy)
        for strategy in strategies
        for place in _places(args.seeds)
        for name in names
    ]
    todo = [key for key in todo if not _holds(done.get(key), args.trials)]
    # One core for each study: what an ask takes is measured beside others.
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for count, row in enumerate(_rows(todo, args.trials, args.claim, args.jobs), 1):
        append_row(args.out, row)
        print(f"{count}/{len(todo)} {row.situation}/{row.seed} {row.strategy} {row.states}", file=sys.stderr)


def _rows(todo: Sequence[tuple[str, int, str]], trials: int, claim: str, jobs: int) -> Iterator[Row]:
    """As they are ready."""
    if jobs == 0:
        yield from (one_study(*key, trials, claim) for key in todo)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        studies = [pool.submit(one_study, *key, trials, claim) for key in todo]
        for study in as_completed(studies):
            yield study.result()


def _holds(row: Row | None, trials: int) -> bool:
    return row is not None and row.trials >= trials and row.digest == set_of(row.situation).digest


def _places(words: str) -> list[int]:
    places: list[int] = []
    for word in words.split(","):
        first, _, last = word.partition("-")
        places += range(int(first), int(last or first) + 1)
    return places


if __name__ == "__main__":
    main()
