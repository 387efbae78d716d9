"""What `measure` prints: figures with intervals, limits with evidence, and plain words for what is no measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optimizer.app.figures import Question, figures, with_curve, with_figures
from optimizer.app.live import LevelMeasured
from optimizer.config import load_workload
from optimizer.core.measurement import EngineMetrics, HostUsage, LoadResult, Measurement
from optimizer.core.stop_reason import StopReason
from optimizer.objectives import parse_slo, resolve_limits
from optimizer.report.measure_view import MeasureView, print_measure

WORKLOAD = load_workload("chat-shared-prefix")


def measurement(e2e_ms: float = 500.0, n: int = 2000, failed: int = 0) -> Measurement:
    rng = np.random.default_rng(1)
    at_s = np.linspace(0.0, 20.0, n, endpoint=False)
    took_s = e2e_ms / 1000.0 * rng.lognormal(0.0, 0.2, n)
    errors = (*("HTTP 503: full",) * failed, *(None,) * (n - failed))
    load = LoadResult(
        window_start_s=0.0,
        window_s=20.0,
        scheduled_s=at_s,
        sent_s=at_s,
        first_token_s=at_s + took_s / 4,
        last_token_s=at_s + took_s,
        prompt_tokens=np.full(n, 32),
        output_tokens=np.full(n, 8),
        errors=errors,
        itl_s=np.full(7 * (n - failed), 0.01),
        window_output_tokens=8 * n,
        window_requests=n,
        tokens_per_s_bins=rng.poisson(8 * n / 20, 20),
        stopped_by=StopReason.DECIDED,
    )
    return Measurement(load, EngineMetrics(preemptions=3.0, notes=("a gauge was missing",)), HostUsage())


def view(**changes) -> MeasureView:
    plain = MeasureView(
        subject="http://127.0.0.1:8000", mode="online", simulated=False, complete=True, engine=None, model="m",
        workload="w", seed=0, confidence=0.9, metrics=[], verdict=None, limits=[], stopped_by=None, bound=None,
        curve=None, notes=[], folder=None,
    )  # fmt: skip
    return plain.model_copy(update=changes)


def question(*slos: str, **changes) -> Question:
    limits = resolve_limits([parse_slo(slo, origin="--slo") for slo in slos], {})
    return replace(Question(WORKLOAD, 0, limits), **changes)


def test_every_latency_and_rate_has_its_interval():
    found = {metric.name: metric for metric in figures(measurement(), question()).metrics}
    for name in ("output_tokens_per_s", "requests_per_s", "p50_e2e_ms", "p99_ttft_ms", "mean_tpot_ms"):
        metric = found[name]
        assert metric.has_interval, name
        assert metric.low <= metric.value <= metric.high, name
    assert not found["preemptions"].has_interval
    assert found["spec_acceptance_rate"].value is None


def test_an_end_beyond_the_largest_observation_is_unbounded(console, printed):
    found = with_figures(view(), measurement(n=60), question("p99_e2e_ms=2000"))
    print_measure(console, found)
    assert "unbounded" in printed(console)
    assert found.limits[0].high is None


@pytest.mark.parametrize(("limit_ms", "verdict"), [(2000, "feasible"), (520, "infeasible")])
def test_limits_are_judged_with_evidence(limit_ms, verdict):
    found = figures(measurement(), question(f"p99_e2e_ms={limit_ms}"))
    assert (found.verdict, found.limits[0].verdict, found.limits[0].requests) == (verdict, verdict, 2000)
    assert found.limits[0].effective_requests <= 2000
    assert [limit.name for limit in found.limits] == ["p99_e2e_ms", "error_rate"]


def test_without_limits_there_is_no_verdict():
    found = figures(measurement(), question())
    assert (found.verdict, found.limits) == (None, [])


def test_failures_are_told_with_their_reason():
    notes = figures(measurement(failed=100), question()).notes
    assert "100 of 2000 requests failed: HTTP 503: full" in notes
    assert "a gauge was missing" in notes


def test_a_batch_is_never_called_an_online_figure(console, printed):
    print_measure(console, with_figures(view(mode="offline"), measurement(), question(offline=True)))
    text = printed(console)
    assert "OFFLINE: all requests at once." in " ".join(text.split())
    assert "batch output tok/s" in text
    assert "E2E" not in text
    assert "TTFT" not in text


def test_a_broken_off_measurement_says_so(console, printed):
    print_measure(console, with_figures(view(complete=False), measurement(), question()))
    assert "BROKEN OFF: the server vanished." in " ".join(printed(console).split())


def test_a_curve_is_feasible_when_a_level_is():
    asked = question("p99_e2e_ms=2000")
    levels = [LevelMeasured(1.0, measurement()), LevelMeasured(2.0, measurement(e2e_ms=5000.0))]
    found = with_curve(view(mode="sweep"), levels, asked)
    assert [point.verdict for point in found.curve.points] == ["feasible", "infeasible"]
    assert (found.verdict, found.curve.unit, found.metrics) == ("feasible", "requests in flight", [])


def test_the_json_holds_no_number_that_json_has_not():
    text = with_figures(view(), measurement(n=3), question("p99_e2e_ms=2000")).model_dump_json()
    assert "NaN" not in text
    assert "Infinity" not in text
