"""Tables of a benchmark's rows: regret, feasibility, crashes, and differences seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from tests.bench.search.rows import TOLERANCE, Mark, Pick, Row, best_known

_ROUNDING = 1.0 + 1e-9
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Summary:
    """One strategy after so many trials.

    Attributes:
        n: Studies.
        quartiles: Of the regret, in percent: lower, median, upper.
        mean: Of the regret, in percent.
        feasible: Share of studies whose setting truly keeps every limit.
        tolerated: The same with the tolerance.
        crashes: Mean number of launches that crashed.
        ask_s: Mean seconds of an ask.
    """

    n: int
    quartiles: tuple[float, float, float]
    mean: float
    feasible: float
    tolerated: float
    crashes: float
    ask_s: float


def picked(mark: Mark, pick: str) -> Pick | None:
    """The setting that counts: what the study recommends, or its best observed."""
    return mark.recommended if pick == "recommended" else mark.best


def regrets(rows: Sequence[Row], known: dict[tuple[str, int], float], trials: int, pick: str) -> FloatArray:
    """Regret of each row in percent, shape (n,); 100 where there is no setting, or it breaks a limit."""
    found = []
    for row in rows:
        setting = picked(row.marks[trials], pick)
        found.append(100.0 if setting is None else 100.0 * setting.regret(known[row.situation, row.seed]))
    return np.array(found, dtype=np.float64)


def summary(rows: Sequence[Row], known: dict[tuple[str, int], float], trials: int, pick: str) -> Summary:
    """Of rows that all have a mark there."""
    found = regrets(rows, known, trials, pick)
    settings = [picked(row.marks[trials], pick) for row in rows]
    excesses = [np.inf if s is None or s.excess is None else s.excess for s in settings]
    low, median, high = (float(q) for q in np.percentile(found, (25, 50, 75)))
    return Summary(
        n=len(rows),
        quartiles=(low, median, high),
        mean=float(found.mean()),
        feasible=float(np.mean([excess <= 0.0 for excess in excesses])),
        tolerated=float(np.mean([excess <= TOLERANCE for excess in excesses])),
        crashes=float(np.mean([row.marks[trials].crashes for row in rows])),
        ask_s=float(np.mean([row.marks[trials].ask_s for row in rows])),
    )


@dataclass(frozen=True, slots=True)
class Paired:
    """A strategy against another on the same instances.

    Attributes:
        n: Instances that both ran.
        better, worse: Of them, where the first has less regret, or more.
        difference: Median of the differences in regret, in percentage points; below 0 the first is better.
        p: Of Wilcoxon's signed-rank test, two-sided; 1 where nothing differs.
    """

    n: int
    better: int
    worse: int
    difference: float
    p: float


def paired(
    first: Sequence[Row], second: Sequence[Row], known: dict[tuple[str, int], float], trials: int, pick: str
) -> Paired | None:
    """None where they have no instance in common."""
    ours = {(row.situation, row.seed): row for row in first}
    pairs = [(ours[key], row) for row in second if (key := (row.situation, row.seed)) in ours]
    if not pairs:
        return None
    one = regrets([pair[0] for pair in pairs], known, trials, pick)
    other = regrets([pair[1] for pair in pairs], known, trials, pick)
    apart = one - other
    p = float(stats.wilcoxon(apart).pvalue) if np.any(apart != 0.0) else 1.0
    return Paired(len(pairs), int((apart < 0).sum()), int((apart > 0).sum()), float(np.median(apart)), p)


def print_tables(rows: Sequence[Row], *, against: str = "", pick: str = "recommended") -> None:
    """One table for each situation and one for all together, in Markdown; what was claimed and what ran before them."""
    known = best_known(rows)
    for told in dict.fromkeys(f"{row.claim or 'No claim'} ({row.versions})" for row in rows):
        print(f"- {told}")
    beaten = {(row.situation, row.seed) for row in rows if known[row.situation, row.seed] > row.optimum * _ROUNDING}
    print(
        f"- A study found a better setting than the search for the optimum in {len(beaten)} of {len(known)} instances."
    )
    situations = list(dict.fromkeys(row.situation for row in rows))
    for situation in (*situations, *(["all"] if len(situations) > 1 else [])):
        here = [row for row in rows if situation in (row.situation, "all")]
        print(f"\n### {situation}\n")
        _print_summaries(here, known, pick)
        if against:
            _print_paired(here, known, against, pick)


def _marks(rows: Sequence[Row]) -> list[int]:
    return sorted({trials for row in rows for trials in row.marks})


def _print_summaries(rows: Sequence[Row], known: dict[tuple[str, int], float], pick: str) -> None:
    print("| strategy | trials | n | regret %: median (quartiles) | mean | feasible | within 5 % | crashes | s/ask |")
    print("|---|---|---|---|---|---|---|---|---|")
    for strategy in dict.fromkeys(row.strategy for row in rows):
        for trials in _marks(rows):
            there = [row for row in rows if row.strategy == strategy and trials in row.marks]
            if not there:
                continue
            s = summary(there, known, trials, pick)
            low, median, high = s.quartiles
            print(
                f"| {strategy} | {trials} | {s.n} | {median:.0f} ({low:.0f}-{high:.0f}) | {s.mean:.0f} "
                f"| {s.feasible:.0%} | {s.tolerated:.0%} | {s.crashes:.1f} | {s.ask_s:.2f} |"
            )


def _print_paired(rows: Sequence[Row], known: dict[tuple[str, int], float], against: str, pick: str) -> None:
    print(f"\n| against {against} | trials | n | better / worse | median difference, points | p |")
    print("|---|---|---|---|---|---|")
    theirs = [row for row in rows if row.strategy == against]
    for strategy in dict.fromkeys(row.strategy for row in rows if row.strategy != against):
        for trials in _marks(rows):
            ours = [row for row in rows if row.strategy == strategy and trials in row.marks]
            found = paired(ours, [row for row in theirs if trials in row.marks], known, trials, pick)
            if found is not None:
                print(
                    f"| {strategy} | {trials} | {found.n} | {found.better} / {found.worse} "
                    f"| {found.difference:+.1f} | {found.p:.3g} |"
                )
