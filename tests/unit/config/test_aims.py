"""Objectives and limits that the traffic cannot answer, and the keys of `verdict`."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from optimizer.config.aims import VerdictSection, check_aims
from optimizer.core.errors import InputError
from optimizer.load import Workload
from optimizer.load.sessions import Sessions
from optimizer.objectives import OBJECTIVES, VerdictRules, parse_slo

CLOSED = {"kind": "closed_loop", "in_flight": 8}
POISSON = {"kind": "poisson", "rate_per_s": 5.0}
RAMP = {"kind": "ramp", "from_rate_per_s": 1.0, "to_rate_per_s": 2.0, "over_s": 5.0}


def workload(arrivals: dict[str, Any], *, answer: int = 8) -> Workload:
    return Workload.model_validate(
        {
            "name": "w",
            "arrivals": arrivals,
            "prompt_tokens": {"kind": "fixed", "tokens": 4},
            "output_tokens": {"kind": "fixed", "tokens": answer},
            "warmup": {"requests": 2, "max_s": 1.0},
            "window": {"min_s": 5, "max_s": 10, "min_requests": 10},
        }
    )


SESSIONS = workload(CLOSED).model_copy(
    update={
        "sessions": Sessions.model_validate(
            {"turns": {"kind": "fixed", "tokens": 3}, "think_time": {"kind": "fixed", "seconds": 0}}
        )
    }
)


def check(objective: str, slos: tuple[str, ...], traffic: Workload) -> None:
    limits = [parse_slo(text, origin="t") for text in slos]
    check_aims(OBJECTIVES[objective], limits, traffic, origin="s.yaml: objective")


@pytest.mark.parametrize(
    ("objective", "slos", "traffic", "words"),
    [
        ("goodput", (), workload(CLOSED), "goodput needs a limit"),
        ("p99_e2e", (), workload(CLOSED), "latency at a fixed rate, and the workload w has none: it keeps 8 requests"),
        ("throughput", ("p99_tpot_ms=5",), workload(CLOSED, answer=1), "p99_tpot_ms<=5 needs answers of two tokens"),
        ("throughput", ("mean_itl_ms=5",), workload(CLOSED, answer=1), "mean_itl_ms<=5 needs answers of two tokens"),
        ("p99_itl", (), workload(POISSON, answer=1), "objective p99_itl needs answers of two tokens"),
        ("capacity", (), workload(CLOSED), "capacity needs a limit"),
        ("capacity", ("p99_e2e<=1x",), workload(CLOSED), "tries many rates, and the limit 'p99_e2e<=1x' is a multiple"),
        ("capacity", ("p99_e2e_ms=5",), workload(RAMP), "sets the arrival rate itself, and the workload w has its own"),
        ("capacity", ("p99_e2e_ms=5",), SESSIONS, "those of the workload w follow each other in sessions"),
    ],
)
def test_what_no_measurement_can_answer_is_refused(
    objective: str, slos: tuple[str, ...], traffic: Workload, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        check(objective, slos, traffic)
    assert words in caught.value.message
    assert caught.value.message.startswith("s.yaml: objective: ")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("objective", "slos", "traffic"),
    [
        ("throughput", (), workload(CLOSED, answer=1)),
        ("goodput", ("p99_e2e<=1x",), workload(CLOSED)),
        ("p99_e2e", (), workload(POISSON)),
        ("p99_ttft", ("p99_e2e_ms=5",), workload(RAMP, answer=1)),
        ("tokens_per_joule", (), workload(CLOSED)),
        ("capacity", ("p99_e2e_ms=5", "mean_ttft_ms=2"), workload(CLOSED)),
        ("capacity", ("p99_e2e_ms=5",), workload(POISSON)),
    ],
)
def test_what_can_be_answered_passes(objective: str, slos: tuple[str, ...], traffic: Workload) -> None:
    check(objective, slos, traffic)


def test_the_verdict_section_has_sensible_defaults() -> None:
    assert VerdictSection().rules == VerdictRules(0.05, 0.05, 0.01)
    assert VerdictSection(level=0.01, tolerance=0.0, error_rate=0.1).rules == VerdictRules(0.01, 0.0, 0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"level": 0}, {"level": 0.5}, {"tolerance": -0.1}, {"tolerance": 1}, {"error_rate": 1}, {"alpha": 0.1}],
)
def test_values_beyond_the_bounds_of_the_verdict_section_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        VerdictSection.model_validate(wrong)
