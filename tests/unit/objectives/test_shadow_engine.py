"""The model engine: what it does with requests, and that its times are found again from what clients see."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from optimizer.core.measurement import FloatArray
from optimizer.objectives.shadow_engine import FEWEST_TO_FIT, FitRows, ShadowEngine, Traffic, fit_rows, fitted

ENGINE = ShadowEngine(16, 6e-3, 8e-5, 2e-6, 4e-5)


def traffic(n: int, rate_per_s: float, seed: int = 0) -> Traffic:
    rng = np.random.default_rng(seed)
    due_s = np.cumsum(rng.exponential(1.0 / rate_per_s, n))
    return Traffic(due_s, rng.integers(20, 200, n), rng.integers(1, 80, n))


def times(engine: ShadowEngine, sent: Traffic) -> tuple[FloatArray, FloatArray]:
    """First and last tokens."""
    return sent.due_s + engine.latencies_s(sent, "ttft"), sent.due_s + engine.latencies_s(sent, "e2e")


def test_a_request_alone_takes_its_prompt_and_its_steps() -> None:
    sent = Traffic(np.array([3.0]), np.array([100]), np.array([11]))
    step_s = 6e-3 + 8e-5 + 2e-6
    assert ENGINE.latencies_s(sent, "ttft") == pytest.approx([100 * 4e-5 + 1.5 * step_s])
    assert ENGINE.latencies_s(sent, "e2e") == pytest.approx([100 * 4e-5 + 11.5 * step_s])
    assert ENGINE.latencies_s(sent, "tpot") == pytest.approx([step_s])


def test_answers_of_one_token_have_no_time_per_token() -> None:
    sent = Traffic(np.array([0.0, 1.0]), np.array([10, 10]), np.array([1, 5]))
    assert ENGINE.latencies_s(sent, "tpot").shape == (1,)


@given(n=st.integers(1, 300), rate=st.floats(0.1, 300.0), slots=st.integers(1, 20), seed=st.integers(0, 99))
@example(n=6, rate=58.0, slots=6, seed=6)
def test_no_more_run_than_there_are_slots_and_who_came_first_is_served_first(
    n: int, rate: float, slots: int, seed: int
) -> None:
    sent = traffic(n, rate, seed)
    engine = ShadowEngine(slots, 6e-3, 8e-5, 0.0, 4e-5)
    first_s, last_s = times(engine, sent)
    assert (first_s > sent.due_s).all()
    assert (last_s >= first_s - 1e-9).all()
    # With prompts that take no time a request begins to run one and a half steps before its first token.
    free = ShadowEngine(slots, 6e-3, 0.0, 0.0, 0.0)
    began_s, ended_s = times(free, sent)
    began_s = began_s - 1.5 * 6e-3
    assert (np.diff(began_s) >= -1e-9).all()
    running: list[float] = []
    for at_s, until_s in zip(began_s.tolist(), ended_s.tolist(), strict=True):
        while running and running[0] <= at_s + 1e-9:
            heapq.heappop(running)
        heapq.heappush(running, until_s)
        assert len(running) <= slots


def test_twice_as_slow_is_the_same_at_half_the_rate() -> None:
    sent = traffic(500, 20.0)
    slow = Traffic(2.0 * sent.due_s, sent.prompt_tokens, sent.output_tokens)
    assert ENGINE.slower(2.0).latencies_s(slow, "e2e") == pytest.approx(2.0 * ENGINE.latencies_s(sent, "e2e"))


def test_its_times_are_found_again() -> None:
    rows = []
    for rate in (5.0, 15.0, 25.0):
        sent = traffic(2000, rate)
        rows.append(fit_rows(sent, *times(ENGINE, sent)))
    found = fitted(rows, 16)
    assert found is not None
    sent = traffic(2000, 22.0, seed=5)
    assert found.latencies_s(sent, "e2e").mean() == pytest.approx(ENGINE.latencies_s(sent, "e2e").mean(), rel=0.02)
    assert found.s_per_prompt_token == pytest.approx(4e-5, rel=0.05)


def test_only_what_ran_beside_known_requests_tells() -> None:
    sent = traffic(200, 10.0)
    first_s, last_s = times(ENGINE, sent)
    some = fit_rows(sent, first_s, last_s, within_s=(5.0, 10.0))
    assert 0 < some.took_s.size == np.count_nonzero((first_s >= 5.0) & (last_s <= 10.0) & (sent.output_tokens > 1))
    known = fit_rows(sent, first_s, last_s, running=16)
    assert known.of[:, 1] == pytest.approx(16.0 * known.of[:, 0])


def test_too_few_requests_fit_no_model() -> None:
    few = FitRows(np.ones((FEWEST_TO_FIT - 1, 4)), np.ones(FEWEST_TO_FIT - 1))
    assert fitted([few], 8) is None
    assert fitted([few, few], 8) is not None
    assert fitted([FitRows(np.ones((99, 4)), np.zeros(99))], 8) is None, "an engine that takes no time is none"
