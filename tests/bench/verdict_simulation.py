"""How often the sequential verdict is wrong, and how many requests it takes: simulated requests, no engine.

    python tests/bench/verdict_simulation.py [--runs 1000] [--requests 10000] [--only NAME]

Exit code 1 when a promise of docs/verdict.md does not hold: a wrong verdict in more than 5 % of the runs, or fewer than
90 % of the runs with independent requests decided within 3,000 requests.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import signal, stats

from optimizer.core.measurement import FloatArray
from optimizer.core.scoring import Verdict
from optimizer.objectives.sequential import (
    SloTest,
    cannot_beat,
    judge,
    mean_interval,
    tail_percentile_interval,
)

LEVEL, SOON = 0.05, 3000
Ranks = Callable[[np.random.Generator, int, float], FloatArray]
"""Draws n uniform ranks in order of time, of which a share (the third argument) is over the percentile."""


# ---- Requests: uniform ranks with some correlation, and latencies with those ranks -----------------------------------


def independent(rng: np.random.Generator, n: int, share: float) -> FloatArray:
    return rng.random(n)


def runs_over(mean_length: float, *, density: float = 1.0) -> Ranks:
    """Stretches over the percentile, of geometric length; only a part of the requests in them with density < 1."""

    def ranks(rng: np.random.Generator, n: int, share: float) -> FloatArray:
        inside, on, start = np.zeros(n, dtype=np.bool_), bool(rng.random() < share / density), 0
        length = mean_length / density
        between = length * (1.0 - share / density) / (share / density)
        while start < n:
            stretch = rng.geometric(1.0 / (length if on else between))
            inside[start : start + stretch] = on
            start, on = start + stretch, not on
        over = inside & (rng.random(n) < density)
        return np.where(over, 1.0 - share * rng.random(n), (1.0 - share) * rng.random(n))

    return ranks


def held(mean_length: float) -> Ranks:
    """The same latency again and again, for a geometric number of requests: runs at every level."""

    def ranks(rng: np.random.Generator, n: int, share: float) -> FloatArray:
        return rng.random(n)[np.cumsum(rng.random(n) < 1.0 / mean_length) - n]

    return ranks


def autoregressive(correlation: float) -> Ranks:
    def ranks(rng: np.random.Generator, n: int, share: float) -> FloatArray:
        noise = rng.standard_normal(n + 1000)
        normal = signal.lfilter([np.sqrt(1.0 - correlation**2)], [1.0, -correlation], noise)[1000:]
        return stats.norm.cdf(normal)

    return ranks


def singles_and_bursts(length: int) -> Ranks:
    """Half of what is over comes alone, half in bursts of one length: not what the model takes runs to be."""

    def ranks(rng: np.random.Generator, n: int, share: float) -> FloatArray:
        over = rng.random(n) < share / 2.0
        for start in np.flatnonzero(rng.random(n) < share / 2.0 / length):
            over[start : start + length] = True
        return np.where(over, 1.0 - share * rng.random(n), (1.0 - share) * rng.random(n))

    return ranks


SHAPES = {
    "lognormal 0.2": stats.lognorm(0.2),
    "lognormal 0.3": stats.lognorm(0.3),
    "lognormal 0.5": stats.lognorm(0.5),
    "gamma 10": stats.gamma(10.0),
    "gamma 4": stats.gamma(4.0),
    "lognormal 1.0": stats.lognorm(1.0),
    "0.5 + lognormal 0.5": stats.lognorm(0.5, loc=0.5),
}
MAIN_SHAPE = "lognormal 0.3"


class Latencies:
    """Latencies of one shape, scaled so that a percentile has a given value; ranks are looked up in a fine table."""

    def __init__(self, shape: str, percentile: float = 99.0) -> None:
        self._shape, self._top = SHAPES[shape], SHAPES[shape].ppf(percentile / 100.0)

    def __call__(self, ranks: FloatArray, percentile_at: float) -> FloatArray:
        return self._shape.ppf(ranks) * (percentile_at / self._top)

    def share_over(self, limit: float, percentile_at: float) -> float:
        return float(self._shape.sf(limit * self._top / percentile_at))


# ---- Verdicts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """Shares of runs, and quantiles of the number of requests until decided (infinite: not at all)."""

    wrong: float
    soon: float
    decided: float
    median: float
    ninth_decile: float


def tally(test: SloTest, draw: Ranks, shape: str, ratio: float, options: argparse.Namespace, seed: int) -> Tally:
    """Runs whose true percentile is `ratio` times the limit; FEASIBLE is wrong above 1, INFEASIBLE below."""
    latencies = Latencies(shape, test.percentile)
    wrong_verdict = Verdict.FEASIBLE if ratio > 1.0 else Verdict.INFEASIBLE
    at, wrong = np.full(options.runs, np.inf), 0
    for run, rng in enumerate(np.random.default_rng(seed).spawn(options.runs)):
        state = judge(test, latencies(draw(rng, options.requests, test.allowed), ratio * test.limit))
        wrong += state.verdict is wrong_verdict
        at[run] = np.inf if state.decided_at is None else state.decided_at
    return Tally(
        wrong / options.runs,
        float(np.mean(at <= SOON)),
        float(np.mean(np.isfinite(at))),
        *(float(np.quantile(at, q, method="higher")) for q in (0.5, 0.9)),
    )


def fixed_size(good: float, bad: float) -> int:
    """Fewest requests of a test with both errors at most 5 %, made at one fixed number and told both shares."""
    for n in range(50, 200_000, 10):
        most = stats.binom.ppf(1.0 - LEVEL, n, good)
        if stats.binom.cdf(most, n, bad) <= LEVEL:
            return n
    return 200_000


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def count(value: float) -> str:
    return "-" if not np.isfinite(value) else f"{value:,.0f}"


def verdict_rows(
    cases: list[tuple[str, Ranks, str, SloTest]],
    options: argparse.Namespace,
    ratios: tuple[float, ...] = (1.05, 0.95),
) -> list[tuple[str, float, Tally]]:
    say(f"{'requests':<34} {'shape':<20} {'true/limit':>10} {'wrong %':>8} {'by 3,000 %':>10} "
          f"{'decided %':>9} {'median':>7} {'90 %':>7}")  # fmt: skip
    rows = []
    for number, (name, draw, shape, test) in enumerate(cases):
        for ratio in ratios:
            row = tally(test, draw, shape, ratio, options, seed=1000 * number + round(100 * ratio))
            say(f"{name:<34} {shape:<20} {ratio:>10.2f} {100 * row.wrong:>8.1f} {100 * row.soon:>10.1f} "
                  f"{100 * row.decided:>9.1f} {count(row.median):>7} {count(row.ninth_decile):>7}")  # fmt: skip
            rows.append((name, ratio, row))
    return rows


P99 = SloTest(99.0, 1.0)
CORRELATED = {
    "runs of 4": runs_over(4.0),
    "runs of 16": runs_over(16.0),
}


def promised(options: argparse.Namespace) -> list[str]:
    cases = [(name, draw, MAIN_SHAPE, P99) for name, draw in {"independent": independent, **CORRELATED}.items()]
    failures = []
    for name, ratio, row in verdict_rows(cases, options):
        if row.wrong > LEVEL:
            failures.append(f"{name}, true P99 at {ratio}: wrong in {row.wrong:.1%} of the runs")
        if name == "independent" and row.soon < 0.9:
            failures.append(f"{name}, true P99 at {ratio}: decided within {SOON} in {row.soon:.1%} of the runs")
    return failures


def shapes(options: argparse.Namespace) -> list[str]:
    for shape in SHAPES:
        bad, good = (Latencies(shape).share_over(1.0, ratio) for ratio in (1.05, 0.95))
        say(f"{shape:<20} over the limit at 1.05 / 0.95: {bad:.2%} / {good:.2%}; "
              f"a fixed-size test that is told both needs {fixed_size(good, bad):,}")  # fmt: skip
    rows = verdict_rows([("independent", independent, shape, P99) for shape in SHAPES], options)
    return [f"{name} at {ratio}: wrong in {row.wrong:.1%}" for name, ratio, row in rows if row.wrong > LEVEL]


def far(options: argparse.Namespace) -> list[str]:
    cases = [("independent", independent, MAIN_SHAPE, P99), ("runs of 4", runs_over(4.0), MAIN_SHAPE, P99)]
    verdict_rows(cases, options, (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3, 2.0, 5.0))
    return []


def tolerance(options: argparse.Namespace) -> list[str]:
    verdict_rows(
        [(f"tolerance {size:g}", independent, MAIN_SHAPE, SloTest(99.0, 1.0, tolerance=size)) for size in (0.0, 0.1)],
        options,
    )
    return []


def other_correlation(options: argparse.Namespace) -> list[str]:
    draws = {
        "same latency 4 times": held(4.0),
        "same latency 16 times": held(16.0),
        "runs of 4, half of them over": runs_over(4.0, density=0.5),
        "runs of 16, half of them over": runs_over(16.0, density=0.5),
        "AR(1) 0.8": autoregressive(0.8),
        "AR(1) 0.95": autoregressive(0.95),
        "AR(1) 0.99": autoregressive(0.99),
        "runs of 40": runs_over(40.0),
        "half single, half bursts of 4": singles_and_bursts(4),
        "half single, half bursts of 16": singles_and_bursts(16),
    }
    cases = [(name, draw, MAIN_SHAPE, P99) for name, draw in draws.items()]
    cases += [("runs of 16", runs_over(16.0), shape, P99) for shape in ("lognormal 0.2", "lognormal 1.0", "gamma 4")]
    verdict_rows(cases, options)
    return []


def settings(options: argparse.Namespace) -> list[str]:
    tests = [SloTest(99.0, 1.0, level=level) for level in (0.01, 0.1)]
    tests += [SloTest(percentile, 1.0) for percentile in (50.0, 90.0, 95.0, 99.9)]
    failures = []
    for draw_name, draw in (("independent", independent), ("runs of 4", runs_over(4.0))):
        cases = [(f"{draw_name}, P{t.percentile:g}, level {t.level:g}", draw, MAIN_SHAPE, t) for t in tests]
        for (name, ratio, row), test in zip(
            verdict_rows(cases, options), [t for t in tests for _ in "ab"], strict=True
        ):
            # Three standard errors: at level 1 % a thousand runs are few.
            if row.wrong > test.level + 3.0 * np.sqrt(test.level * (1.0 - test.level) / options.runs):
                failures.append(f"{name} at {ratio}: wrong in {row.wrong:.1%}")
    return failures


# ---- Intervals and dominance -----------------------------------------------------------------------------------------


def intervals(options: argparse.Namespace) -> list[str]:
    say(f"{'requests':<34} {'n':>6} {'P99 covered %':>14} {'unbounded %':>12} {'mean covered %':>15}")
    latencies = Latencies(MAIN_SHAPE)
    mean = SHAPES[MAIN_SHAPE].mean() / SHAPES[MAIN_SHAPE].ppf(0.99)
    draws: dict[str, Ranks] = {"independent": independent, **CORRELATED}
    draws |= {"same latency 4 times": held(4.0), "AR(1) 0.95": autoregressive(0.95)}
    for name, draw in draws.items():
        for n in (200, 1000, 3000):
            covered = unbounded = mean_covered = 0
            for rng in np.random.default_rng(n).spawn(options.runs):
                values = latencies(draw(rng, n, 0.01), 1.0)
                tail, middle = tail_percentile_interval(values, 99.0), mean_interval(values)
                covered += (tail.low is None or tail.low <= 1.0) and (tail.high is None or tail.high >= 1.0)
                unbounded += tail.high is None
                mean_covered += middle.low is not None and middle.high is not None and middle.low <= mean <= middle.high
            shares = (100.0 * x / options.runs for x in (covered, unbounded, mean_covered))
            say(f"{name:<34} {n:>6} {{:>14.1f}} {{:>12.1f}} {{:>15.1f}}".format(*shares))
    return []


def dominance(options: argparse.Namespace) -> list[str]:
    say(f"{'1-s blocks':<34} {'true/incumbent':>14} {'stopped %':>10} {'median block':>13}")
    failures = []
    for correlation in (0.0, 0.5, 0.8):
        for ratio in (1.0, 0.98, 0.95, 0.9, 0.8):
            at = np.full(options.runs, np.inf)
            for run, rng in enumerate(np.random.default_rng(7).spawn(options.runs)):
                noise = rng.standard_normal(220)
                series = signal.lfilter([np.sqrt(1.0 - correlation**2)], [1.0, -correlation], noise)[100:]
                blocks = 1000.0 * ratio * (1.0 + 0.1 * series)
                stops = (n for n in range(8, 121, 2) if cannot_beat(blocks[:n], 1000.0, maximise=True))
                at[run] = next(stops, np.inf)
            stopped = float(np.mean(np.isfinite(at)))
            say(f"CV 10 %, correlation {correlation:<13g} {ratio:>14.2f} {100 * stopped:>10.1f} "
                  f"{count(float(np.quantile(at, 0.5, method='higher'))):>13}")  # fmt: skip
            if ratio == 1.0 and stopped > LEVEL:
                failures.append(f"dominance, correlation {correlation}: an equal one was stopped in {stopped:.1%}")
    return failures


PARTS = {
    part.__name__: part
    for part in (promised, shapes, far, tolerance, other_correlation, settings, intervals, dominance)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=10_000, help="in each run, at most")
    parser.add_argument("--only", choices=PARTS, action="append", help="this table alone; may be repeated")
    options = parser.parse_args()
    failures = []
    for name in options.only or PARTS:
        say(f"\n== {name.replace('_', ' ')}: {options.runs} runs of up to {options.requests:,} requests ==")
        started = time.perf_counter()
        failures += PARTS[name](options)
        say(f"({time.perf_counter() - started:.0f} s)")
    for failure in failures:
        say(f"NOT KEPT: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
