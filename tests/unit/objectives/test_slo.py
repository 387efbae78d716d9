"""Limits as people write them, and the messages for those that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.errors import InputError
from optimizer.metrics import METRICS
from optimizer.objectives import OBJECTIVES, Slo, check_slos, parse_slo
from optimizer.objectives.slo import LATENCY_METRICS, RECORDED_STATISTICS


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("p99_e2e_ms=800", Slo("e2e", 99.0, limit_ms=800.0)),
        ("p99_e2e_ms<=800", Slo("e2e", 99.0, limit_ms=800.0)),
        ("  p99_e2e_ms <= 8e2 ", Slo("e2e", 99.0, limit_ms=800.0)),
        ("p99_e2e<=1.0x", Slo("e2e", 99.0, baseline_factor=1.0)),
        ("p99_e2e=1.25X", Slo("e2e", 99.0, baseline_factor=1.25)),
        ("p99.9_ttft_ms=250.5", Slo("ttft", 99.9, limit_ms=250.5)),
        ("mean_tpot_ms=40", Slo("tpot", None, limit_ms=40.0)),
        ("p50_itl_ms<=12", Slo("itl", 50.0, limit_ms=12.0)),
    ],
)
def test_what_people_write_is_read(text: str, slo: Slo) -> None:
    assert parse_slo(text, origin="--slo") == slo


_percents = st.one_of(st.none(), st.floats(0, 100, exclude_min=True, exclude_max=True, allow_subnormal=False))
_numbers = st.floats(1e-6, 1e12)


@given(metric=st.sampled_from(LATENCY_METRICS), percent=_percents, number=_numbers)
def test_an_absolute_limit_reads_back_as_itself(metric: str, percent: float | None, number: float) -> None:
    slo = Slo(metric, percent, limit_ms=number)
    assert parse_slo(str(slo), origin="test") == slo


@given(
    metric=st.sampled_from(LATENCY_METRICS),
    percent=st.sampled_from([None, 50.0, 90.0, 95.0, 99.0, 99.9]),
    number=_numbers,
)
def test_a_relative_limit_reads_back_as_itself(metric: str, percent: float | None, number: float) -> None:
    slo = Slo(metric, percent, baseline_factor=number)
    assert parse_slo(str(slo), origin="test") == slo


@given(text=st.text(max_size=30))
def test_any_text_is_a_limit_or_an_input_error(text: str) -> None:
    try:
        slo = parse_slo(text, origin="test")
    except InputError as error:
        assert "(test)" in error.message
        assert error.hint
    else:
        assert parse_slo(str(slo), origin="test") == slo


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("fast", "is not a limit", "such as p99_e2e_ms=800"),
        ("p99_e2e_ms=", "is not a limit", "such as p99_e2e_ms=800"),
        ("p99_e2e_ms>=800", "an upper bound", "p99_e2e_ms<=800"),
        ("p99_e2e_ms>800", "an upper bound", "p99_e2e_ms<=800"),
        ("p99_e2e_ms==800", "an upper bound", "p99_e2e_ms<=800"),
        ("p99_ete_ms=800", "no statistic of a latency", "did you mean p99_e2e_ms?"),
        ("tpot_ms=800", "no statistic of a latency", "_tpot_ms?"),
        ("output_tokens_per_s=800", "no statistic of a latency", "the metric is e2e"),
        ("p100_e2e_ms=800", "percentile 100", "99th percentile"),
        ("p0_e2e_ms=800", "percentile 0", "99th percentile"),
        ("p99_e2e_ms=0", "above zero", "such as"),
        ("p99_e2e_ms=-3", "above zero", "such as"),
        ("p99_e2e_ms=nan", "finite", "such as"),
        ("p99_e2e_ms=inf", "finite", "such as"),
        ("p99_e2e_ms=1e999", "finite", "such as"),
        ("p99_e2e_ms=fast", "'fast' is not a number", "such as"),
        ("p99_e2e_ms=800ms", "'800ms' is not a number", "such as"),
        ("p99_e2e<=x", "'x' is not a number", "such as"),
        ("p99_e2e<=0x", "above zero", "such as"),
        ("p99_e2e=800", "without a unit", "write p99_e2e_ms=800"),
        ("p99_e2e_ms<=1.0x", "has no unit", "write p99_e2e<=1.0x"),
        ("p97_e2e<=1.0x", "baseline's p97, which is not recorded", "mean, p50, p90"),
    ],
)
def test_what_is_wrong_is_said_with_text_and_origin(text: str, message: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_slo(text, origin="limits.yaml: slos[0]")
    assert message in caught.value.message
    assert repr(text) in caught.value.message
    assert "limits.yaml: slos[0]" in caught.value.message
    assert hint in (caught.value.hint or "")


def slos(*texts: str) -> list[Slo]:
    return [parse_slo(text, origin="--slo") for text in texts]


@pytest.mark.parametrize(
    ("texts", "word"),
    [
        (("p99_e2e_ms=800", "p99_e2e_ms=900"), "contradict"),
        (("p99_e2e_ms=800", "p50_ttft_ms=9", "p99.0_e2e_ms<=800"), "repeat"),
        (("p99_e2e_ms=800", "p99_e2e<=1.0x"), "contradict"),
    ],
)
def test_two_limits_on_one_statistic_are_refused_with_both_named(texts: tuple[str, ...], word: str) -> None:
    given_slos = slos(*texts)
    with pytest.raises(InputError, match=word) as caught:
        check_slos(given_slos, origin="--slo")
    assert f"'{given_slos[0]}'" in caught.value.message
    assert f"'{given_slos[-1]}'" in caught.value.message


def test_limits_on_several_statistics_are_fine() -> None:
    check_slos(slos("p50_e2e_ms=900", "p99_e2e_ms=800", "mean_e2e_ms=1", "p99_ttft_ms=800"), origin="--slo")


def test_every_name_stands_in_the_table_of_metrics() -> None:
    recorded = {f"{statistic}_{metric}_ms" for statistic in RECORDED_STATISTICS for metric in LATENCY_METRICS}
    assert recorded == {name for name in METRICS if name.endswith(tuple(f"_{m}_ms" for m in LATENCY_METRICS))}
    for name, objective in OBJECTIVES.items():
        assert objective.name == name
        assert METRICS[objective.metric].better == ("higher" if objective.maximise else "lower")
