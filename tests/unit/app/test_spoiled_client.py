"""A client that cannot keep up: the run is made again with more load processes, and decides nothing if that fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from optimizer.app.figures import Question, figures, spoiled_by_client, with_curve
from optimizer.app.live import LevelMeasured, LiveServer, Watchers, measure_live, sweep_live
from optimizer.config import load_workload
from optimizer.core.client_health import ClientHealth
from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.measurement import LoadResult, Measurement
from optimizer.core.stop_reason import StopReason
from optimizer.objectives import parse_slo, resolve_limits
from optimizer.report.measure_view import MeasureView
from tests.unit.objectives.made import load_of, measured

WORKLOAD = load_workload("chat-shared-prefix")
SERVER = LiveServer(EngineEndpoint("http://127.0.0.1:9", "m"))
VIEW = MeasureView(
    subject="s", mode="sweep", simulated=False, complete=True, engine=None, model="m", workload="w", seed=0,
    confidence=0.9, notes=[], folder=None,
)  # fmt: skip


def asking(*slos: str) -> Question:
    return Question(WORKLOAD, 0, resolve_limits([parse_slo(text, origin="test") for text in slos], {}))


def health(processes: int = 1, *, cores: float = 0.2, lag_ms: float = 1.0) -> ClientHealth:
    return ClientHealth(lag_ms, 1.0, cores, cores, processes)


def loaded(client: ClientHealth, e2e_ms: float = 100.0) -> Measurement:
    return measured([e2e_ms] * 6000, client=client, stopped_by=StopReason.DECIDED)


@pytest.fixture
def runs(monkeypatch: Any) -> Any:
    """Puts load runs in place, one after another; gives with how many processes each was made."""
    made: list[int] = []

    def install(clients: Iterator[ClientHealth]) -> list[int]:
        async def run_load(*_: Any, processes: int, **__: Any) -> LoadResult:
            made.append(processes)
            return load_of([100.0] * 10, client=next(clients))

        async def warm_up(*_: Any) -> int:
            return 1

        monkeypatch.setattr("optimizer.app.live.run_load", run_load)
        monkeypatch.setattr("optimizer.app.live.warm_up", warm_up)
        monkeypatch.setattr("optimizer.app.live._PAUSE_S", 0.0)
        return made

    return install


def spoiled(measurement: Measurement) -> str | None:
    return spoiled_by_client(measurement, asking())


async def test_it_gets_two_and_then_four_processes_and_no_more(runs: Any) -> None:
    said: list[str] = []
    made = runs(iter([health(1, cores=1.0), health(2, cores=1.0), health(4, cores=1.0)]))
    last = await measure_live(SERVER, WORKLOAD, 0, Watchers(said.append, lambda _: None), spoiled=spoiled)
    assert made == [1, 2, 4]
    assert spoiled(last) is not None
    assert [line.rpartition("; ")[2] for line in said if "again" in line] == [
        "trying it again with 2 load processes",
        "trying it again with 4 load processes",
    ]


async def test_a_sweep_keeps_the_processes_that_a_level_took(runs: Any) -> None:
    kept: list[LevelMeasured] = []
    made = runs(iter([health(1), health(1, cores=1.0), health(2), health(2)]))
    told = Watchers(lambda _: None, lambda _: None)
    await sweep_live(SERVER, WORKLOAD, (1.0, 2.0, 4.0), 0, told, keep=kept.append, spoiled=spoiled)
    assert made == [1, 1, 2, 2]
    assert [one.level for one in kept] == [1.0, 2.0, 4.0]


def test_a_limit_that_holds_by_the_clients_own_times_is_not_shown_to_hold() -> None:
    question = asking("p90_e2e_ms=200")
    assert figures(loaded(health()), question).verdict == "feasible"
    found = figures(loaded(health(lag_ms=30.0)), question)
    assert found.verdict == "undecided"
    assert {limit.verdict for limit in found.limits} == {"undecided"}
    assert any("its event loop was late by 30.0 ms" in note for note in found.notes)


def test_a_limit_that_is_broken_without_the_clients_delay_stays_broken() -> None:
    assert figures(loaded(health(lag_ms=30.0), e2e_ms=400.0), asking("p90_e2e_ms=200")).verdict == "infeasible"


def test_a_level_that_the_client_spoiled_is_named() -> None:
    levels = [LevelMeasured(1.0, loaded(health())), LevelMeasured(8.0, loaded(health(cores=1.0)))]
    view = with_curve(VIEW, levels, asking("p90_e2e_ms=200"))
    assert view.curve is not None
    assert [point.verdict for point in view.curve.points] == ["feasible", "undecided"]
    assert [note for note in view.notes if note.startswith("level 8: the client could not keep up")]


def test_a_load_that_saturated_is_told_without_any_limit() -> None:
    found = figures(measured([100.0] * 50, stopped_by=StopReason.SATURATED), asking())
    assert any(note.startswith("more came than was served") for note in found.notes)
