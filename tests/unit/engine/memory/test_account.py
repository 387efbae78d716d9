"""Predictions against what engines reported, before a start and after one."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.core.engine_config import FlagValue, JsonValue
from optimizer.engine.memory import CannotPredict, MemoryAccount, MemoryObservation

GIB = 1024**3
H200_BYTES = int(139.8 * GIB)
H200 = MemoryObservation({}, {}, pool_tokens=545_712)
"""One H200, vLLM 0.26, Qwen2.5-14B's shape in bfloat16, default flags."""


@pytest.fixture
def account(shape):
    return MemoryAccount(shape("qwen2.5-14b"), "gpu")


def h200(account, flags=None, observations=None):
    known = None if observations is None else account.calibrate(observations, device_bytes=H200_BYTES)
    return account.predict(flags or {}, {}, device_bytes=H200_BYTES, calibration=known)


# --- on a GPU


def test_a_card_that_was_measured_is_foretold_to_a_gib_before_any_start(account):
    prediction = h200(account)
    assert prediction.pool_bytes.mid / GIB == pytest.approx(99.9, abs=1.0)
    assert prediction.pool_tokens.low < 545_712 < prediction.pool_tokens.high
    assert prediction.kv_bytes_per_token == 192 * 1024
    assert prediction.request_bytes == 6 * GIB
    assert prediction.weights_bytes / GIB == pytest.approx(27.5, abs=0.05)


def test_after_one_start_the_same_launch_is_known(account):
    prediction = h200(account, observations=[H200])
    assert prediction.pool_tokens.mid == pytest.approx(545_712, rel=0.001)
    assert prediction.starts == 1
    assert prediction.pool_bytes.high - prediction.pool_bytes.low < 0.5 * GIB


def test_a_start_teaches_other_launches_less_the_more_they_differ(account):
    far = {"max-num-batched-tokens": 16384}
    near, other = (h200(account, flags, [H200]).pool_bytes for flags in ({"gpu-memory-utilization": 0.5}, far))
    assert near.high - near.low < other.high - other.low
    assert other.high - other.low < (before := h200(account, far).pool_bytes).high - before.low


def test_a_larger_step_and_more_requests_leave_less_for_the_pool(account):
    tokens = [h200(account, {"max-num-batched-tokens": n, "max-num-seqs": 32}).pool_bytes.mid for n in (2048, 16384)]
    seqs = [h200(account, {"max-num-batched-tokens": 2048, "max-num-seqs": n}).pool_bytes.mid for n in (32, 1024)]
    assert tokens[0] - tokens[1] > 0.5 * GIB
    assert seqs[0] - seqs[1] > 0.5 * GIB


def test_the_reported_weights_are_taken_at_their_word(account):
    told = MemoryObservation({}, {}, pool_tokens=545_712, weights_bytes=27.9 * GIB)
    assert h200(account, observations=[told]).weights_bytes / GIB == pytest.approx(27.9, abs=0.1)


def test_two_gpus_hold_half_the_weights_and_half_of_each_token(account):
    prediction = account.predict({"tensor-parallel-size": 2}, {}, device_bytes=24 * GIB)
    assert prediction.weights_bytes / GIB == pytest.approx(13.76, abs=0.05)
    assert prediction.kv_bytes_per_token == 96 * 1024


def test_a_given_pool_is_what_it_is(account):
    prediction = account.predict({"kv-cache-memory-bytes": 4 * GIB}, {}, device_bytes=24 * GIB)
    assert prediction.pool_bytes.low == prediction.pool_bytes.high == 4 * GIB
    assert prediction.requested_bytes is None
    assert prediction.misfit == "a KV pool of at most 4.00 GiB is smaller than one request of 32768 tokens (6.00 GiB)"
    blocks = account.predict({"num-gpu-blocks-override": 2048}, {}, device_bytes=24 * GIB)
    assert (blocks.pool_tokens.mid, blocks.misfit) == (32768.0, None)


# --- what cannot start


def test_a_model_beyond_the_card_is_a_misfit_with_its_numbers(account):
    prediction = account.predict({}, {}, device_bytes=24 * GIB)
    assert prediction.misfit is not None
    assert "of 22.08 GiB at least 2" in prediction.misfit
    assert prediction.misfit.endswith("which needs one request of 32768 tokens (6.00 GiB)")
    assert prediction.violation == math.inf
    assert prediction.pool_tokens.mid == 0.0


def test_a_context_cap_may_be_what_is_too_much(account):
    flags: dict[str, FlagValue] = {"max-num-batched-tokens": 2048, "max-num-seqs": 32}
    too_long = account.predict(flags, {}, device_bytes=36 * GIB)
    assert too_long.misfit is not None
    assert 0 < too_long.violation < math.inf
    assert account.predict({**flags, "max-model-len": 4096}, {}, device_bytes=36 * GIB).misfit is None
    assert account.predict({**flags, "max-model-len": "auto"}, {}, device_bytes=36 * GIB).misfit is None


def test_only_what_fails_at_the_optimistic_end_is_a_misfit(account):
    """Down from plenty, the most likely prediction gives up before the optimistic one does."""
    utilizations = [round(share, 3) for share in np.arange(0.3, 0.2, -0.001)]
    predictions = [h200(account, {"gpu-memory-utilization": share}) for share in utilizations]
    doubtful = [p.pool_bytes.mid < p.request_bytes for p in predictions]
    rejected = [p.misfit is not None for p in predictions]
    assert sum(doubtful) > sum(rejected) > 0
    assert not any(misfit and not doubt for misfit, doubt in zip(rejected, doubtful, strict=True))


@settings(max_examples=60)
@given(
    share=st.floats(0.05, 1.0),
    tokens=st.integers(1, 65536),
    seqs=st.integers(1, 4096),
    length=st.integers(1, 131072),
    device=st.sampled_from(["gpu", "cpu"]),
)
def test_ends_bracket_the_middle_and_a_misfit_has_a_reason_and_a_grade(share, tokens, seqs, length, device):
    flags: dict[str, FlagValue] = {
        "gpu-memory-utilization": share,
        "max-num-batched-tokens": tokens,
        "max-num-seqs": seqs,
        "max-model-len": length,
    }
    prediction = ACCOUNTS[device].predict(flags, {}, device_bytes=40 * GIB)
    for interval in (prediction.taken_bytes, prediction.pool_bytes, prediction.pool_tokens, prediction.concurrency):
        assert interval.low <= interval.mid <= interval.high
        assert math.isfinite(interval.low)
        assert math.isfinite(interval.high)
    assert (prediction.misfit is None) == (prediction.shortfall <= 0) == (prediction.violation is None)
    if prediction.violation is not None:
        assert prediction.violation > 0
        assert prediction.request_bytes > prediction.pool_bytes.high


@settings(max_examples=40)
@given(share=st.floats(0.1, 0.9), more=st.floats(0.001, 0.1))
def test_more_memory_never_makes_a_misfit(share, more):
    def shortfall(utilization: float) -> float:
        return ACCOUNTS["gpu"].predict({"gpu-memory-utilization": utilization}, {}, device_bytes=80 * GIB).shortfall

    assert shortfall(share + more) < shortfall(share)


# --- correction


def test_the_order_of_the_starts_is_of_no_matter(account):
    starts = [H200, MemoryObservation({"max-num-batched-tokens": 2048}, {}, pool_tokens=549_000)]
    one, other = (account.calibrate(order, device_bytes=H200_BYTES) for order in (starts, starts[::-1]))
    assert np.allclose(list(vars_of(one)), list(vars_of(other)), atol=1e-6)


def test_the_same_starts_give_the_same_account_to_the_last_bit(account):
    one, again = (h200(account, {"max-num-seqs": 64}, [H200]) for _ in range(2))
    assert one == again


def test_one_start_that_met_a_neighbour_does_not_spoil_the_rest(account):
    honest = [H200] * 4
    spoilt = MemoryObservation({}, {}, pool_tokens=400_000)
    clean, mixed = (h200(account, observations=starts).pool_tokens.mid for starts in (honest, [*honest, spoilt]))
    assert mixed == pytest.approx(clean, rel=0.01)


def test_starts_that_say_nothing_or_whose_flags_cannot_be_read_are_left_out(account):
    silent = MemoryObservation({}, {})
    given_pool = MemoryObservation({"kv-cache-memory-bytes": GIB}, {}, pool_tokens=5000)
    strange = MemoryObservation({"max-num-seqs": "many"}, {}, pool_tokens=5000)
    assert account.calibrate([silent, given_pool, strange], device_bytes=H200_BYTES).readings == 0


def test_a_start_that_found_too_little_teaches_as_well(account):
    """vLLM says how much there was: less than was foretold."""
    flags: dict[str, FlagValue] = {"gpu-memory-utilization": 0.24}
    failed = MemoryObservation(flags, {}, pool_bytes=3.5 * GIB)
    before, after = h200(account, flags), h200(account, flags, [failed])
    assert before.pool_bytes.mid != pytest.approx(3.5 * GIB, abs=0.1 * GIB)
    assert after.pool_bytes.mid == pytest.approx(3.5 * GIB, abs=0.1 * GIB)


def vars_of(calibration):
    coefficients = calibration.coefficients
    return (getattr(coefficients, name) for name in coefficients.__slots__)


# --- on the CPU, against the committed grid


@pytest.fixture(scope="module")
def grid(project_root):
    """Flags and reported tokens of every run on this machine's like that came to a pool."""
    lines = (project_root / "tests/data/tiny_cpu_grid/grid.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [(grid_flags(r["params"]), r["metrics"]["kv_cache_tokens"]) for r in records if r["metrics"] is not None]


HOST_BYTES = int(23.5 * GIB)
NGRAM: dict[str, JsonValue] = {"method": "ngram", "num_speculative_tokens": 2}


def grid_flags(params):
    flags = {"enforce-eager": True, "dtype": "float32"}
    flags["gpu-memory-utilization"] = round(params.get("engine-memory", 1.7) * GIB / HOST_BYTES, 4)
    names = ("max-num-seqs", "max-num-batched-tokens", "max-model-len", "block-size")
    flags |= {name: params[name] for name in names if name in params}
    if params["speculation"] == "ngram":
        flags["speculative-config"] = {"method": "ngram", "num_speculative_tokens": params["num-speculative-tokens"]}
    return flags


@pytest.fixture(scope="module")
def tiny(project_root):
    return MemoryAccount.of_folder(project_root / "search_spaces/models/tiny-kv", "cpu")


def errors(tiny, grid, calibration=None):
    predictions = [tiny.predict(flags, {}, device_bytes=HOST_BYTES, calibration=calibration) for flags, _ in grid]
    held = [p.pool_tokens.low <= seen <= p.pool_tokens.high for p, (_, seen) in zip(predictions, grid, strict=True)]
    return [abs(p.pool_tokens.mid / seen - 1) for p, (_, seen) in zip(predictions, grid, strict=True)], held


def test_before_any_start_the_interval_holds_every_pool_of_the_grid(tiny, grid):
    _, held = errors(tiny, grid)
    assert all(held)


def test_any_one_start_foretells_the_others_within_five_percent(tiny, grid):
    for flags, seen in itertools.islice(grid, 0, None, 7):
        learnt = tiny.calibrate([MemoryObservation(flags, {}, pool_tokens=seen)], device_bytes=HOST_BYTES)
        off, held = errors(tiny, grid, learnt)
        assert max(off) < 0.05
        assert all(held)


def test_a_worker_that_holds_more_than_was_foretold_is_learnt_from_one_start(tiny):
    """What six trials on a live vLLM 0.32 reported, whose worker counted the pages of its parent process as well."""
    reported: list[tuple[float, dict[str, FlagValue], int]] = [
        (1.7, {"max-model-len": 2048, "max-num-seqs": 16}, 32_512),
        (1.7, {}, 32_256),
        (1.7, {"max-model-len": 4096, "max-num-seqs": 5, "max-num-batched-tokens": 256, "block-size": 64}, 32_640),
        (1.3, {"max-model-len": 4096, "max-num-seqs": 94, "block-size": 64, "speculative-config": NGRAM}, 17_280),
        (1.3, {"max-model-len": 2048, "max-num-seqs": 5, "speculative-config": NGRAM}, 17_280),
    ]
    launches: list[tuple[dict[str, FlagValue], int]] = [
        ({"enforce-eager": True, "dtype": "float32", **more, "gpu-memory-utilization": gib * GIB / HOST_BYTES}, seen)
        for gib, more, seen in reported
    ]
    first = MemoryObservation(launches[0][0], {}, pool_tokens=launches[0][1])
    off, held = errors(tiny, launches, tiny.calibrate([first], device_bytes=HOST_BYTES))
    assert max(off) < 0.05
    assert all(held)


def test_a_pool_of_its_own_size_on_the_cpu(tiny):
    prediction = tiny.predict({}, {"VLLM_CPU_KVCACHE_SPACE": "2"}, device_bytes=HOST_BYTES)
    assert prediction.pool_bytes.mid == 2 * GIB


def test_a_type_that_is_not_known(tiny):
    with pytest.raises(CannotPredict, match="--dtype int3"):
        tiny.predict({"dtype": "int3"}, {}, device_bytes=HOST_BYTES)


@pytest.fixture(autouse=True, scope="module")
def _accounts(project_root):
    ACCOUNTS["gpu"] = MemoryAccount.of_folder(project_root / "tests/data/h200", "gpu")
    ACCOUNTS["cpu"] = MemoryAccount.of_folder(project_root / "search_spaces/models/tiny-kv", "cpu")


ACCOUNTS: dict[str, MemoryAccount] = {}
