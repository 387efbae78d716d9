"""When a scripted fault strikes, and which scripts are refused."""

from __future__ import annotations

import json

import pytest

from optimizer.core.errors import InputError
from optimizer.engine.simulated.fault_script import FaultWatch, count_launch, read_script
from optimizer.engine.simulated.faults import FAULTS, Fault

LAUNCH_FLAGS = {"max-num-seqs": 8, "enable-prefix-caching": False}


def script(*entries):
    return read_script({"AUTOTUNE_SIM_FAULTS": json.dumps(entries), "AUTOTUNE_SIM_STATE": "unused"})


def test_every_fault_is_described():
    assert set(FAULTS) == set(Fault)
    for kind in FAULTS.values():
        assert ("{}" in kind.text) == (kind.amount is not None)
        assert "{}" not in kind.description


def test_the_amount_is_the_script_s_or_the_usual():
    watch = FaultWatch(script({"fault": "slow_stream", "amount": 7}, {"fault": "http_503_burst"}))
    assert (watch.amount(Fault.SLOW_STREAM), watch.amount(Fault.HTTP_503_BURST)) == (7, 10)


def test_a_metric_is_missing_by_name_once_it_is_due():
    entry = {"fault": "missing_metric", "name": "kv_cache_usage_perc", "after_requests": 0}
    watch = FaultWatch(script(entry))
    assert watch.names(Fault.MISSING_METRIC) == frozenset()
    watch.note_request()
    assert watch.names(Fault.MISSING_METRIC) == {"kv_cache_usage_perc"}


def test_no_script_is_no_fault():
    assert read_script({}) == ()


@pytest.mark.parametrize(
    ("entry", "launch", "applies"),
    [
        ({}, None, True),
        ({"when": {"max-num-seqs": 8}}, 1, True),
        ({"when": {"--max_num_seqs": 8}}, 1, True),
        ({"when": {"max-num-seqs": 9}}, 1, False),
        ({"when": {"enable-prefix-caching": False}}, 1, True),
        ({"when": {"enable-prefix-caching": True}}, 1, False),
        ({"when": {"block-size": 16}}, 1, False),
        ({"nth_launch": 2}, 2, True),
        ({"nth_launch": 2}, 1, False),
        ({"nth_launch": 2, "when": {"max-num-seqs": 9}}, 2, False),
    ],
)
def test_conditions_of_a_launch(entry, launch, applies):
    (scripted,) = script({"fault": "oom_loading"} | entry)
    assert scripted.applies(LAUNCH_FLAGS, launch) is applies


def test_a_fault_waits_for_its_requests():
    watch = FaultWatch(script({"fault": "slow_stream", "after_requests": 2}))
    due = []
    for _ in range(4):
        due.append(watch.due(Fault.SLOW_STREAM))
        watch.note_request()
    assert due == [False, False, False, True]
    assert not watch.due(Fault.TRUNCATED_SSE)


def test_a_fault_waits_for_its_time():
    watch = FaultWatch(script({"fault": "slow_stream", "after_s": 3600}, {"fault": "truncated_sse", "after_s": 0}))
    assert not watch.due(Fault.SLOW_STREAM)
    assert watch.due(Fault.TRUNCATED_SSE)
    assert watch.scripts(Fault.SLOW_STREAM)


def test_both_conditions_must_hold():
    watch = FaultWatch(script({"fault": "slow_stream", "after_s": 3600, "after_requests": 0}))
    watch.note_request()
    assert not watch.due(Fault.SLOW_STREAM)


def test_launches_are_counted_in_the_state_file(tmp_path):
    environ = {"AUTOTUNE_SIM_STATE": str(tmp_path / "launches")}
    assert [count_launch(environ) for _ in range(3)] == [1, 2, 3]
    assert count_launch({}) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense", "not JSON"),
        ("{}", "expected a list"),
        ('["oom_loading"]', "is no fault"),
        ('[{"fault": "oom_loading", "after": 1}]', "is no fault"),
        ('[{"fault": "earthquake"}]', "unknown fault 'earthquake'"),
        ('[{"fault": "slow_stream", "after_s": "soon"}]', "after_s='soon'"),
        ('[{"fault": "slow_stream", "after_requests": -1}]', "after_requests=-1"),
        ('[{"fault": "slow_stream", "when": "always"}]', "when='always'"),
        ('[{"fault": "slow_stream", "nth_launch": 1}]', "nth_launch needs a count"),
        ('[{"fault": "never_ready", "amount": 1}]', "never_ready has no amount"),
        ('[{"fault": "missing_metric"}]', "missing_metric with name=None"),
        ('[{"fault": "slow_stream", "name": "x"}]', "slow_stream with name='x'"),
    ],
)
def test_a_wrong_script_is_named(text, complaint):
    with pytest.raises(InputError, match="AUTOTUNE_SIM_FAULTS") as refused:
        read_script({"AUTOTUNE_SIM_FAULTS": text})
    assert complaint in refused.value.message
