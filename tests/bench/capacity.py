"""How near the capacity search comes to a known knee and what it spends, beside ladders of fixed steps.

Load runs are played as the simulated engine's own scheduler plays them, in virtual time, so that thousands of requests
take seconds and the result depends on no machine. The knee of a scene is where the percentile of long runs crosses its
limit; FEASIBLE is wrong at a rate at which it is more than 1.05 times that.

    python -m tests.bench.capacity [--scenes judging] [--seeds 6] [--ladders fixed] [--knees]

`--scenes design` are those that the constants of the search were chosen on, `judging` those that it met once after
that, `first` those that it met once before its last changes, `before` those that an earlier search was judged on.
`--ladders both` plays the ladders too, `--knees` the long runs again; else the recorded knees stand.

A ladder starts at half the knee, which it is told, and goes up by 3 % of the knee until a rate does not hold. One has a
fixed window at each rate, of 40 times what one allowed request over the limit comes in (4,000 for a P99), and
goes by the observed percentile; the other ends each window at the sequential verdict. Ramp and drain count everywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from optimizer.core.measurement import UNFINISHED, EngineMetrics, FloatArray, HostUsage, LoadResult, Measurement
from optimizer.core.scoring import Verdict
from optimizer.core.stop_reason import StopReason
from optimizer.load import ClosedLoop, Workload
from optimizer.load.saturation import is_saturated
from optimizer.objectives import OBJECTIVES, parse_slo, resolve_limits
from optimizer.objectives.capacity import LevelPlan
from optimizer.tuning.aim import Aim
from optimizer.tuning.capacity import CapacityFound, find_capacity
from optimizer.tuning.capacity_level import LevelDecision, LevelRun, at_rate, judge_level, requests_per_allowed
from tests.bench.capacity_scenes import DESIGN, JUDGED_BEFORE, JUDGED_FIRST, JUDGING, Lengths, Scene
from tests.bench.virtual_engine import VirtualEngine

STEP = 0.03
RAMP_S = 4.0
WINDOW_OF_ALLOWED = 40
LONG_REQUESTS, LONG_RUNS = 200_000, 4
SETTLED_AFTER = 5000
TOLERANCE = 1.05
WITHIN = 0.03


class Loads:
    """Plays load runs one after another, each look being what a client would know at that second.

    Attributes:
        sent: Requests of all runs, ramps and drains included.
    """

    def __init__(self, scene: Scene, seed: int) -> None:
        self._scene = scene
        self._seed = seed
        self.sent = 0

    async def __call__(self, run: LevelRun) -> Measurement:
        """One run, ended as a real load is."""
        arrivals, window = run.workload.arrivals, run.workload.window
        engine = VirtualEngine(self._scene, arrivals, seed=1000 * self._seed + run.number)
        start_s = RAMP_S
        if isinstance(arrivals, ClosedLoop):
            start_s = max(start_s, engine.ended_s(arrivals.in_flight))
        now_s, reason = start_s, None
        while reason is None:
            now_s += 1.0
            view = look(engine, start_s, now_s, None)
            ended = int(np.count_nonzero(view.ok))
            reason = self._reason(run, view)
            if reason is not None and not reason.ends_at_once:
                waits = now_s - start_s < window.min_s or ended < window.min_requests
                reason = None if waits else reason
            spent = window.max_requests is not None and ended >= window.max_requests
            if reason is None and (spent or now_s - start_s >= window.max_s):
                reason = StopReason.BUDGET
        load = look(engine, start_s, now_s, reason)
        drained_s = now_s if reason.ends_at_once else max(now_s, float(np.nanmax(load.last_token_s, initial=0.0)))
        self.sent += engine.due_before(drained_s)
        return Measurement(load, EngineMetrics(), HostUsage())

    def _reason(self, run: LevelRun, view: LoadResult) -> StopReason | None:
        if run.stop_when is None:
            return StopReason.WINDOW
        if is_saturated(view):
            return StopReason.SATURATED
        return run.stop_when(view)


def look(engine: VirtualEngine, start_s: float, now_s: float, reason: StopReason | None) -> LoadResult:
    """The requests due since `start_s`; after a reason that drains, all of them have ended."""
    drained = reason is not None and not reason.ends_at_once
    due_s, first_s, last_s = engine.requests(now_s, drained=drained)
    ended = last_s <= now_s
    which = (due_s >= start_s) & (due_s < now_s)
    done = np.ones(int(which.sum()), dtype=np.bool_) if drained else ended[which]
    began = done if drained else first_s[which] <= now_s
    marks = np.arange(start_s + 1.0, now_s + 1e-9)
    under_way = np.searchsorted(due_s, marks) - np.searchsorted(np.sort(last_s[~np.isnan(last_s)]), marks)
    prompts, answers = (tokens[which] for tokens in engine.tokens(due_s.size))
    return LoadResult(
        window_start_s=start_s,
        window_s=now_s - start_s,
        scheduled_s=due_s[which],
        sent_s=due_s[which],
        first_token_s=np.where(began, first_s[which], np.nan),
        last_token_s=np.where(done, last_s[which], np.nan),
        prompt_tokens=prompts,
        output_tokens=np.where(done, answers, 0),
        errors=tuple(None if over else UNFINISHED for over in done),
        itl_s=np.zeros(0),
        window_output_tokens=0,
        window_requests=int(np.count_nonzero(ended & (last_s >= start_s))),
        in_flight_per_s=under_way.astype(np.int64),
        now_s=now_s,
        stopped_by=reason,
    )


@dataclass(frozen=True)
class Outcome:
    """One search or ladder: rates as shares of the knee, None where there is none, and requests sent."""

    rate: float | None
    sent: int
    knee: float | None = None
    knee_low: float | None = None
    knee_high: float | None = None


def searched(scene: Scene, seed: int) -> tuple[Outcome, CapacityFound]:
    """One capacity search."""
    loads = Loads(scene, seed)
    found = asyncio.run(find_capacity(aim_of(scene), workload_of(scene), loads, max_num_seqs=scene.max_num_seqs))
    knee, rate = found.result.knee, found.result.rate_per_s
    ends = [None if knee is None else knee.end(side * 1.645) for side in (-1.0, 1.0)]
    shares = [
        None if at is None else at / scene.knee_per_s for at in (None if knee is None else knee.rate_per_s, *ends)
    ]
    return Outcome(None if rate is None else rate / scene.knee_per_s, loads.sent, *shares), found


def ladder(scene: Scene, seed: int, *, fixed: bool) -> Outcome:
    """Steps of 3 % of the knee from half of it upwards until one does not hold: the last that did."""
    loads, aim, held = Loads(scene, 500 + seed), aim_of(scene), None
    window = round(WINDOW_OF_ALLOWED * requests_per_allowed(aim.limits))
    for number in range(100):
        share = 0.5 + STEP * number
        plan = LevelPlan(share * scene.knee_per_s, aim.rules.level, probe=False)
        workload = at_rate(workload_of(scene), plan, aim.limits)
        decision: Callable[[LoadResult], StopReason | None] = LevelDecision(aim, plan, None)
        if fixed:
            decision = _whole_window(window)
        level = judge_level(aim, plan, asyncio.run(loads(LevelRun(number, workload, decision))).load)
        holds = level.headroom >= 1.0 if fixed else level.verdict is Verdict.FEASIBLE
        if not holds:
            break
        held = share
    return Outcome(held, loads.sent)


def _whole_window(requests: int) -> Callable[[LoadResult], StopReason | None]:
    return lambda view: StopReason.WINDOW if int(np.count_nonzero(view.ok)) >= requests else None


def aim_of(scene: Scene) -> Aim:
    """Its limits at the usual level."""
    return Aim(OBJECTIVES["capacity"], resolve_limits([parse_slo(slo, origin="bench") for slo in scene.slos], {}))


def workload_of(scene: Scene) -> Workload:
    """The traffic as the search is told it; the virtual engine draws from the same lengths."""
    bursty = {"kind": "gamma", "rate_per_s": 1.0, "burstiness": scene.burstiness}
    return Workload.model_validate(
        {
            "name": scene.name,
            "arrivals": {"kind": "poisson", "rate_per_s": 1.0} if scene.burstiness == 1.0 else bursty,
            "prompt_tokens": _lengths_of(scene.prompt_tokens),
            "output_tokens": _lengths_of(scene.output_tokens),
            "warmup": {"requests": 1, "max_s": 10},
            "window": {"min_s": 5, "max_s": 3600, "min_requests": 1},
        }
    )


def _lengths_of(lengths: Lengths) -> dict[str, object]:
    ends = {"low": lengths.low, "high": lengths.high}
    if lengths.sigma is None:
        return {"kind": "uniform", **ends}
    return {"kind": "lognormal", "median": lengths.median, "sigma": lengths.sigma, **ends}


def rate_of(scene: Scene, over: float, requests: int) -> float:
    """Where the latency of long runs is so many times the limit, by bisection to 0.1 %."""
    low, high = 0.7 * scene.knee_per_s, 1.3 * scene.knee_per_s
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if over_limit(scene, middle, requests) <= over else (low, middle)
    return math.sqrt(low * high)


def over_limit(scene: Scene, rate_per_s: float, requests: int = LONG_REQUESTS) -> float:
    """Latency over limit in long runs together, of the limit that has least left."""
    arrivals = at_rate(workload_of(scene), LevelPlan(rate_per_s, 0.05, probe=False), aim_of(scene).limits).arrivals
    parts: dict[str, list[FloatArray]] = {"ttft": [], "e2e": []}
    for seed in range(LONG_RUNS):
        engine = VirtualEngine(scene, arrivals, seed=9001 + seed)
        due_s, first_s, last_s = engine.requests(requests / rate_per_s, drained=True)
        for metric, at_s in (("ttft", first_s), ("e2e", last_s)):
            parts[metric].append((at_s - due_s)[SETTLED_AFTER:])
    latencies_ms = {metric: 1000.0 * np.concatenate(some) for metric, some in parts.items()}
    limits = aim_of(scene).limits
    return max(
        float(np.percentile(latencies_ms[limit.slo.metric], limit.slo.percent or 50.0)) / limit.limit_ms
        for limit in limits
    )


def shown(share: float | None) -> str:
    """A share of the knee, to a tenth of a percent."""
    return "-" if share is None else f"{share:.3f}"


LADDERS: dict[str | None, Sequence[bool]] = {None: (), "fixed": (True,), "both": (True, False)}
SCENES = {"design": DESIGN, "judging": JUDGING, "first": JUDGED_FIRST, "before": JUDGED_BEFORE}


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", choices=tuple(SCENES), default="judging")
    parser.add_argument("--only", default="", help="scenes whose name has this")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--ladders", choices=("fixed", "both"))
    parser.add_argument("--knees", action="store_true")
    parser.add_argument("--long", type=int, default=LONG_REQUESTS, help="requests of each run that tells the knee")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows = []
    for scene in (scene for scene in SCENES[options.scenes] if options.only in scene.name):
        if options.knees:
            knee, beyond = (rate_of(scene, over, options.long) for over in (1.0, TOLERANCE))
            scene = replace(scene, knee_per_s=knee, beyond_per_s=beyond)
        print(f"\n### {scene.name}: knee {scene.knee_per_s:.2f}, beyond {scene.beyond_per_s:.2f} requests/s\n")
        rows.append(report(scene, seeds, ladders=LADDERS[options.ladders]))
    print("\n".join(["", *HEADER, *rows]))


HEADER = (
    "| scene | capacity / knee | knee found / knee | requests | wrong | ladder: held / knee | its requests | share |",
    "|---|---|---|---|---|---|---|---|",
)


def report(scene: Scene, seeds: Sequence[int], *, ladders: Sequence[bool]) -> str:
    """Plays and prints one scene, and says it in one row."""
    print("| seed | capacity / knee | knee found / knee | its 90 % interval | rates | requests |")
    print("|---|---|---|---|---|---|")
    outcomes = []
    for seed in seeds:
        outcome, found = searched(scene, seed)
        outcomes.append(outcome)
        ends = f"{shown(outcome.knee_low)} to {shown(outcome.knee_high)}"
        tried = len(found.result.levels)
        print(
            f"| {seed} | {shown(outcome.rate)} | {shown(outcome.knee)} | {ends} | {tried} | {outcome.sent:,} |",
            flush=True,
        )
    knees = [one for one in outcomes if one.knee is not None]
    covered = sum((one.knee_low or 0.0) <= 1.0 <= (one.knee_high or math.inf) for one in knees)
    print(f"\n- {covered} of {len(knees)} intervals cover the knee")
    wrong = sum((one.rate or 0.0) * scene.knee_per_s > scene.beyond_per_s for one in outcomes)
    sent = float(np.median([one.sent for one in outcomes]))
    row = f"| {scene.name} | {near([one.rate for one in outcomes])} | {near([one.knee for one in outcomes])} "
    row += f"| {sent:,.0f} | {wrong} of {len(outcomes)} |"
    for fixed in ladders:
        steps = [ladder(scene, seed, fixed=fixed) for seed in seeds]
        of_ladder = float(np.median([one.sent for one in steps]))
        held = f" {near([one.rate for one in steps])} | {of_ladder:,.0f} | {sent / of_ladder:.2f} |"
        print(f"- ladder of {'fixed windows' if fixed else 'sequential verdicts'}:{held}", flush=True)
        row += held if fixed else ""
    return row


def near(shares: Sequence[float | None]) -> str:
    """Their median, and how many are within 3 % of 1."""
    values = np.array([0.0 if share is None else share for share in shares])
    return f"{np.median(values):.3f} ({np.count_nonzero(np.abs(values - 1.0) <= WITHIN)} of {values.size})"


if __name__ == "__main__":
    main()
