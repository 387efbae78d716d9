"""When throughput counts as level."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from optimizer.load.completion import RequestTrace
from optimizer.load.level import Levelling


def request_at(tokens_in_second: Callable[[int], int], seconds: int) -> list[RequestTrace]:
    trace = RequestTrace(0.0, 1, 10_000, sent_s=0.0)
    for second in range(seconds):
        for at_s in np.linspace(second, second + 1, tokens_in_second(second), endpoint=False):
            trace.arrivals.append((float(at_s), 1))
    return [trace]


def opens_after(tokens_in_second: Callable[[int], int], seconds: int = 30) -> int | None:
    levelling = Levelling(request_at(tokens_in_second, seconds), 0.0, 60.0)
    assert levelling.slice_s == 1.0
    return next((now for now in range(1, seconds + 1) if levelling.is_level(float(now))), None)


def test_a_steady_stream_is_level_after_two_slices() -> None:
    assert opens_after(lambda second: 100) == 2


def test_a_stream_that_climbs_is_not_until_it_has_climbed() -> None:
    assert opens_after(lambda second: int(20 * 1.2 ** min(second, 10))) == 12


def test_nothing_is_not_level() -> None:
    assert opens_after(lambda second: 0) is None


@pytest.fixture
def noise() -> Iterator[int]:
    rng = np.random.default_rng(5)
    return iter(lambda: int(rng.poisson(8)), -1)


def test_few_tokens_a_second_are_level_when_they_show_no_trend(noise: Iterator[int]) -> None:
    drawn = [next(noise) for _ in range(30)]
    after = opens_after(drawn.__getitem__)
    assert after is not None
    assert after <= 8


def test_what_came_while_the_engine_compiled_says_nothing() -> None:
    levelling = Levelling(request_at(lambda second: 100, 30), 0.0, 60.0)
    levelling.start_again(10.0)
    assert not levelling.is_level(11.5)
    assert levelling.is_level(12.0)


def test_a_short_warm_up_has_short_slices() -> None:
    assert Levelling([], 0.0, 2.0).slice_s == pytest.approx(0.2)
