"""From a measurement to what is shown of it: metrics with intervals, limits with evidence, what bound it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from optimizer.app.live import LevelMeasured
from optimizer.app.traffic import is_closed
from optimizer.core.engine_config import FlagValue
from optimizer.core.measurement import Measurement
from optimizer.core.scoring import Constraint, Verdict
from optimizer.core.stop_reason import StopReason
from optimizer.load import ClosedLoop, Workload
from optimizer.load.arrival_process import ConstantRate, GammaArrivals, PoissonArrivals
from optimizer.load.hit_rate import expected_prefix_hit_rate
from optimizer.metrics import METRICS, BoundContext, bound_in, hit_rate_notes, judge_bound, summarize
from optimizer.objectives import OBJECTIVES, USUAL_RULES, Limit, VerdictRules
from optimizer.objectives.intervals import metric_interval
from optimizer.objectives.objective import CAPACITY, KNEE, objective_metrics
from optimizer.objectives.score import check_failures, check_limit, overall
from optimizer.report.json_view import finite
from optimizer.report.limit_view import LimitView, limit_view
from optimizer.report.measure_view import BoundView, MeasureView, MetricView
from optimizer.report.saturation import CurvePoint, saturation_curve
from optimizer.tuning.aim import Aim
from optimizer.tuning.client_faults import why_spoiled

_USUAL_BLOCK_TOKENS = 16
_OF_USERS = ("_ttft_ms", "_e2e_ms", "goodput_requests_per_s")
"""What a batch has none of: nobody waits for one of its requests."""
_OF_MANY_RATES = (CAPACITY, KNEE)
"""What no single load tells."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a measurement.

    Attributes:
        workload: What was sent.
        seed: Of the lengths.
        limits: What must hold; without any there is no verdict.
        rules: How sure it must be.
        flags: The engine's, as far as they are known.
        offline: Whether all requests were sent at once: rates and latencies of users are no part of that.
    """

    workload: Workload
    seed: int
    limits: Sequence[Limit] = ()
    rules: VerdictRules = USUAL_RULES
    flags: Mapping[str, FlagValue] | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """What a measurement comes to. `verdict` is None without limits; the limit on failures stands in any case."""

    metrics: list[MetricView]
    limits: list[LimitView]
    verdict: str | None
    bound: BoundView
    notes: list[str]
    stopped_by: str | None


def figures(measurement: Measurement, question: Question) -> Figures:
    """Everything that is shown of one measurement."""
    load = measurement.load
    values = _values(measurement, question)
    constraints = _constraints(measurement, question)
    if spoiled_by_client(measurement, question) is not None:
        constraints = [replace(constraint, verdict=Verdict.UNDECIDED) for constraint in constraints]
    bound = judge_bound(measurement, _context(question))
    return Figures(
        metrics=[_metric(name, value, measurement, question) for name, value in values.items()],
        limits=[limit_view(constraint) for constraint in constraints] if question.limits else [],
        verdict=overall(constraints).value if question.limits else None,
        bound=BoundView(kind=bound.kind.value, detail=bound.detail, evidence=list(bound.evidence)),
        notes=[
            *_notes(measurement, question),
            *(note for note in measurement.engine.notes if bound_in([note]) is None),
        ],
        stopped_by=None if load.stopped_by is None else load.stopped_by.value,
    )


def spoiled_by_client(measurement: Measurement, question: Question) -> str | None:
    """Why the client's own delays leave everything open; None where they do not, or a limit is broken even so."""
    aim = Aim(OBJECTIVES["throughput"], tuple(question.limits), rules=question.rules)
    return why_spoiled(measurement.load, _tightest_ms(question), aim)


def _tightest_ms(question: Question) -> float | None:
    return min((limit.limit_ms for limit in question.limits), default=None)


def curve_point(measured: LevelMeasured, question: Question) -> CurvePoint:
    """One level of a sweep."""
    measurement = measured.measurement
    verdict = overall(_constraints(measurement, question)).value if question.limits else None
    if verdict is not None and spoiled_by_client(measurement, question) is not None:
        verdict = Verdict.UNDECIDED.value
    if question.limits and not measurement.load.ok.any():
        verdict = Verdict.INFEASIBLE.value
    return CurvePoint(
        level=measured.level,
        metrics={name: finite(value) for name, value in _values(measurement, question).items()},
        verdict=verdict,
        stopped_by=None if measurement.load.stopped_by is None else measurement.load.stopped_by.value,
    )


def _values(measurement: Measurement, question: Question) -> dict[str, float | None]:
    values = summarize(measurement) | objective_metrics(measurement.load, question.limits)
    if question.offline:
        values = {name: value for name, value in values.items() if not name.endswith(_OF_USERS)}
    values = {name: value for name, value in values.items() if name not in _OF_MANY_RATES}
    return {name: values[name] for name in METRICS if name in values} | values


def _constraints(measurement: Measurement, question: Question) -> list[Constraint]:
    load, rules = measurement.load, question.rules
    return [*(check_limit(limit, load, rules) for limit in question.limits), check_failures(load, rules)]


def _metric(name: str, value: float | None, measurement: Measurement, question: Question) -> MetricView:
    interval = None
    if value is not None and measurement.load.ok.any() and not question.offline:
        confidence = question.rules.confidence
        interval = metric_interval(measurement.load, name, value, question.limits, confidence=confidence)
    return MetricView(
        name=name,
        value=finite(value),
        low=None if interval is None else finite(interval.low),
        high=None if interval is None else finite(interval.high),
        has_interval=interval is not None,
    )


def _context(question: Question) -> BoundContext:
    arrivals, flags = question.workload.arrivals, question.flags or {}
    rate = arrivals.rate_per_s if isinstance(arrivals, ConstantRate | PoissonArrivals | GammaArrivals) else None
    return BoundContext(
        max_num_seqs=_whole(flags.get("max-num-seqs")),
        max_num_batched_tokens=_whole(flags.get("max-num-batched-tokens")),
        in_flight=arrivals.in_flight if isinstance(arrivals, ClosedLoop) else None,
        offered_per_s=rate,
    )


def _whole(value: FlagValue | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _notes(measurement: Measurement, question: Question) -> list[str]:
    load, engine = measurement.load, measurement.engine
    notes = []
    if not load.level:
        notes.append("throughput was not level yet when the window opened: the warm-up ran out of time")
    if load.too_long:
        notes.append(
            f"{load.too_long} requests were longer than the engine takes: they were not sent and count as failed"
        )
    spoiled = None if load.client is None else load.client.spoiled(_tightest_ms(question))
    if spoiled is not None:
        notes.append(spoiled)
    if load.stopped_by is StopReason.SATURATED:
        notes.append(
            f"more came than was served: the queue grew until the load was ended after {load.window_s:.0f} s, and "
            "latencies with it"
        )
    if question.offline:
        return [*notes, *failure_notes(measurement)]
    if load.queue_s.size and float(load.queue_s.max()) > 0.001:
        mean_ms = 1000.0 * float(load.queue_s.mean())
        notes.append(f"requests waited {mean_ms:.1f} ms in the client on average, which their latency counts")
    sharing = question.workload.shared_prefix
    block = None if engine.kv_block_tokens is None else int(engine.kv_block_tokens)
    expected = expected_prefix_hit_rate(question.workload, block or _USUAL_BLOCK_TOKENS, study_seed=question.seed)
    told = hit_rate_notes(
        engine.prefix_cache_hit_rate,
        expected,
        shared_tokens=None if sharing is None else sharing.tokens,
        block_tokens=block,
    )
    return [*notes, *told, *failure_notes(measurement)]


def failure_notes(measurement: Measurement) -> list[str]:
    """The most frequent reasons for which requests failed, and how often."""
    load = measurement.load
    ended = [error for error, waits in zip(load.errors, load.pending, strict=True) if not waits]
    counts = Counter(error for error in ended if error is not None)
    if not counts:
        return []
    told = [f"{count} of {len(ended)} requests failed: {error}" for error, count in counts.most_common(3)]
    return [
        *told,
        "metrics of latency are those of successful requests; intervals and limits count failed ones as over",
    ]


def with_figures(base: MeasureView, measurement: Measurement, question: Question) -> MeasureView:
    """The view with everything that one window tells."""
    found = figures(measurement, question)
    return base.model_copy(
        update={
            "metrics": found.metrics,
            "verdict": found.verdict,
            "limits": found.limits,
            "stopped_by": found.stopped_by,
            "bound": found.bound,
            "notes": list(dict.fromkeys([*base.notes, *found.notes])),
        }
    )


def with_curve(base: MeasureView, measured: list[LevelMeasured], question: Question) -> MeasureView:
    """The view with a saturation curve; its verdict is feasible when a level is."""
    unit = "requests in flight" if is_closed(question.workload) else "requests/s"
    points = [curve_point(one, question) for one in measured]
    curve = saturation_curve(points, unit)
    verdict = None
    if question.limits:
        verdicts = [point.verdict for point in points]
        verdict = next((v for v in ("feasible", "undecided", "infeasible") if v in verdicts), None)
    spoiled = [(one.level, spoiled_by_client(one.measurement, question)) for one in measured]
    notes = [f"level {level:g}: {why}" for level, why in spoiled if why is not None]
    return base.model_copy(update={"curve": curve, "verdict": verdict, "notes": [*base.notes, *notes]})
