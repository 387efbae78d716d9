"""From a search for a capacity to what `measure` shows of it, and what does not go with one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optimizer.app.figures import Question
from optimizer.app.measure_capacity import capacity_aim, check_objective, with_capacity
from optimizer.app.traffic import AS_THE_WORKLOAD_SAYS, TrafficOptions
from optimizer.config import load_workload
from optimizer.core.errors import InputError
from optimizer.core.measurement import EngineMetrics, HostUsage, Measurement
from optimizer.core.scoring import Verdict
from optimizer.load.arrival_process import PoissonArrivals
from optimizer.objectives import parse_slo, resolve_limits
from optimizer.objectives.capacity import CapacityLevel, CapacityResult
from optimizer.report.measure_view import MeasureView
from optimizer.tuning.capacity import CapacityFound
from optimizer.tuning.capacity_level import LevelRun
from optimizer.tuning.trial_pipeline import AttemptOutcome
from tests.unit.objectives.made import load_of

WORKLOAD = load_workload("chat-shared-prefix")
AT_RATE = WORKLOAD.model_copy(update={"arrivals": PoissonArrivals(kind="poisson", rate_per_s=12.0)})
QUESTION = Question(WORKLOAD, 0, resolve_limits([parse_slo("p99_e2e_ms=800", origin="test")], {}))
LEVELS = (
    CapacityLevel(14.0, Verdict.INFEASIBLE, 0.7, 180, probe=True),
    CapacityLevel(12.0, Verdict.FEASIBLE, 1.1, 3000, probe=False),
)
BASE = MeasureView(
    subject="s", mode="capacity", simulated=False, complete=True, engine=None, model="m", workload="w", seed=0,
    confidence=0.9, metrics=[], verdict=None, limits=[], stopped_by=None, bound=None, curve=None, notes=[], folder=None,
)  # fmt: skip


def shown(result: CapacityResult, kept: CapacityLevel) -> MeasureView:
    measurement = Measurement(load_of([500.0] * 400), EngineMetrics(), HostUsage())
    found = CapacityFound(result, measurement, kept, 0.025, LevelRun(2, AT_RATE, None))
    told = replace(measurement, engine=replace(measurement.engine, notes=(*found.notes, "a gauge was missing")))
    found = replace(found, measurement=told)
    return with_capacity(BASE, AttemptOutcome(told, capacity=found), found, QUESTION)


def test_the_capacity_stands_with_every_rate_and_the_figures_of_its_run():
    view = shown(CapacityResult(12.0, 14.0, None, 15.0, LEVELS), LEVELS[1])
    assert view.capacity is not None
    assert (view.capacity.value, view.capacity.high, view.capacity.confidence) == (12.0, None, 0.9)
    assert (view.capacity.infeasible_above, view.capacity.served, view.capacity.metrics_at) == (14.0, 15.0, 12.0)
    assert [(rate.rate_per_s, rate.verdict, rate.probe) for rate in view.capacity.rates] == [
        (14.0, "infeasible", True),
        (12.0, "feasible", False),
    ]
    figures = {metric.name: metric.value for metric in view.metrics}
    assert figures["p99_e2e_ms"] == pytest.approx(500.0)
    assert view.verdict == "feasible", "that of the search, though 400 requests alone would not tell"
    assert {limit.name: limit.verdict for limit in view.limits} == {"p99_e2e_ms": "feasible", "error_rate": "feasible"}
    assert view.notes.count("a gauge was missing") == 1
    assert not any("requests/s" in note for note in view.notes), "the table tells it"


def test_without_a_rate_that_holds_there_is_no_value():
    level = CapacityLevel(0.2, Verdict.UNDECIDED, 0.9, 40, probe=False)
    view = shown(CapacityResult(None, None, None, 15.0, (level,)), level)
    assert view.capacity is not None
    assert (view.capacity.value, view.capacity.confidence, view.capacity.metrics_at) == (None, None, 0.2)
    assert view.verdict == "undecided"


def test_what_is_asked_is_the_capacity_under_the_limits():
    aim = capacity_aim(QUESTION)
    assert aim.objective.metric == "capacity_requests_per_s"
    assert aim.limits == tuple(QUESTION.limits)
    assert aim.incumbent is None


@pytest.mark.parametrize(
    ("traffic", "sweep", "offline", "named"),
    [
        (AS_THE_WORKLOAD_SAYS, "auto", False, "--sweep"),
        (AS_THE_WORKLOAD_SAYS, None, True, "--offline"),
        (TrafficOptions(requests=10), None, False, "--requests"),
        (TrafficOptions(concurrency=10), None, False, "--concurrency"),
        (TrafficOptions(rate_per_s=3.0), None, False, "--rate"),
        (TrafficOptions(duration_s=3.0), None, False, "--duration"),
    ],
)
def test_what_the_search_decides_cannot_be_given(traffic, sweep, offline, named):
    with pytest.raises(InputError, match=f"{named} and --objective capacity exclude each other"):
        check_objective("capacity", traffic, sweep=sweep, offline=offline)
    check_objective(None, traffic, sweep=sweep, offline=offline)


def test_another_objective_is_no_measurement_of_its_own():
    with pytest.raises(InputError, match="--objective goodput: a measurement shows every metric"):
        check_objective("goodput", AS_THE_WORKLOAD_SAYS, sweep=None, offline=False)
