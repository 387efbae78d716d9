"""One page of metrics: what is read from it, and from what is no such page."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.metrics.exposition import Unreadable, parse_exposition
from optimizer.metrics.vllm_names import COUNTERS, GAUGES, SHARES

MakePage = Callable[..., str]


def test_the_figures_of_a_page(make_page: MakePage) -> None:
    reading = parse_exposition(make_page())
    assert reading.values == {
        "running": 3.0,
        "waiting": 2.0,
        "kv_cache_usage": 0.25,
        "preemptions": 5.0,
        "prefix_queries": 100.0,
        "prefix_hits": 40.0,
        "prompt_tokens": 1000.0,
        "generation_tokens": 500.0,
    }
    assert reading.kv_cache_tokens == 2048.0


def test_engines_add_up_and_shares_are_averaged(make_page: MakePage) -> None:
    two = make_page() + make_page(running=1.0, usage=0.75, preemptions=2.0).replace('engine="0"', 'engine="1"')
    reading = parse_exposition(two)
    assert (reading.values["running"], reading.values["preemptions"]) == (4.0, 7.0)
    assert reading.values["kv_cache_usage"] == 0.5
    assert reading.kv_cache_tokens == 4096.0


def test_the_pool_is_worked_out_from_blocks_where_it_is_not_told(make_page: MakePage) -> None:
    assert parse_exposition(make_page(pool="None")).kv_cache_tokens == 16 * 128
    assert parse_exposition(make_page(pool="None").replace('"16"', '"None"')).kv_cache_tokens is None


def test_older_spellings_are_read(make_page: MakePage) -> None:
    old = (
        make_page()
        .replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
        .replace("vllm:prefix_cache", "vllm:gpu_prefix_cache")
    )
    assert parse_exposition(old) == parse_exposition(make_page())


REASONS = """\
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0
vllm:num_requests_waiting_by_reason{engine="1",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 1.0
vllm:request_success_total{engine="0",finished_reason="stop"} 3.0
vllm:request_success_total{engine="0",finished_reason="length"} 40.0
vllm:request_success_total{engine="0",finished_reason="abort"} 9.0
vllm:request_success_total{engine="0",finished_reason="error"} 5.0
"""


def test_reasons_are_told_apart_and_what_did_not_end_well_is_not_done(make_page: MakePage) -> None:
    values = parse_exposition(make_page() + REASONS).values
    assert (values["waiting_capacity"], values["waiting_deferred"], values["requests_done"]) == (9.0, 1.0, 43.0)
    assert {"waiting_capacity", "waiting_deferred", "requests_done"}.isdisjoint(parse_exposition(make_page()).values)


@pytest.mark.parametrize("name", ["inter_token_latency_seconds", "time_per_output_token_seconds"])
def test_the_gap_between_tokens_has_had_two_names(make_page: MakePage, name: str) -> None:
    page = make_page() + f'vllm:{name}_sum{{engine="0"}} 4.5\nvllm:{name}_count{{engine="0"}} 90.0\n'
    values = parse_exposition(page).values
    assert (values["itl_s"], values["itl_count"]) == (4.5, 90.0)


def test_the_size_of_a_block_is_read(make_page: MakePage) -> None:
    assert parse_exposition(make_page()).kv_block_tokens == 128.0
    assert parse_exposition(make_page().replace('block_size="128"', 'block_size="auto"')).kv_block_tokens is None


def test_an_empty_engine_page_has_nothing_but_is_a_page() -> None:
    reading = parse_exposition("# HELP python_info x\n# TYPE python_info gauge\npython_info 1.0\n")
    assert (dict(reading.values), reading.kv_cache_tokens) == ({}, None)


@pytest.mark.parametrize(
    "text", ["", "<html><body>502</body></html>", '{"detail": "Not Found"}', "vllm:num_preemptions_total{a= 5", "\x00"]
)
def test_what_is_no_page_is_said_to_be_none(text: str) -> None:
    with pytest.raises(Unreadable, match="metrics page"):
        parse_exposition(text)


_spellings = [name for table in (COUNTERS, GAUGES, SHARES) for names in table.values() for name in names]


@given(name=st.sampled_from([*_spellings, "vllm:cache_config_info"]), tail=st.text(max_size=40))
def test_garbage_never_raises_anything_else(name: str, tail: str) -> None:
    try:
        parse_exposition(f"# TYPE x gauge\n{name}{tail}\n")
    except Unreadable as error:
        assert str(error)
