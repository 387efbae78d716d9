"""Common random numbers: what must be equal between runs is equal, and what must differ differs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from optimizer.load import RequestPlan, Workload

MakeWorkload = Callable[..., Workload]


@pytest.fixture
def workload(make_workload: MakeWorkload) -> Workload:
    return make_workload(
        prompt_tokens={"kind": "uniform", "low": 20, "high": 60},
        output_tokens={"kind": "uniform", "low": 1, "high": 50},
        shared_prefix={"prefixes": 3, "tokens": 32},
    )


def shape(plan: RequestPlan, number: int) -> tuple[int, int]:
    request = plan.request(number)
    return len(request.prompt), request.output_tokens


def test_the_same_seeds_give_the_same_requests_in_any_order(workload: Workload) -> None:
    one, other = RequestPlan(workload, 7, 11, 512), RequestPlan(workload, 7, 11, 512)
    assert [one.request(n) for n in range(20)] == [other.request(n) for n in reversed(range(20))][::-1]


def test_content_seed_changes_every_token_stream_but_no_length_and_no_choice_of_prefix(workload: Workload) -> None:
    one, other = RequestPlan(workload, 7, 11, 512), RequestPlan(workload, 7, 12, 512)
    prefixes_one, prefixes_other = [], []
    for number in range(30):
        assert shape(one, number) == shape(other, number)
        a, b = one.request(number).prompt, other.request(number).prompt
        assert a[:32] != b[:32]
        assert a[32:] != b[32:]
        prefixes_one.append(tuple(a[:32]))
        prefixes_other.append(tuple(b[:32]))
    assert [prefixes_one.index(p) for p in prefixes_one] == [prefixes_other.index(p) for p in prefixes_other]
    assert len(set(prefixes_one)) == 3


def test_study_seed_changes_the_lengths(workload: Workload) -> None:
    one, other = RequestPlan(workload, 7, 11, 512), RequestPlan(workload, 8, 11, 512)
    assert [shape(one, n) for n in range(30)] != [shape(other, n) for n in range(30)]


@pytest.mark.parametrize(("vocab_size", "below"), [(50, 50), (512, 256), (151_936, 256)])
def test_token_ids_exist_in_the_vocabulary(workload: Workload, vocab_size: int, below: int) -> None:
    plan = RequestPlan(workload, 7, 11, vocab_size)
    ids = [token for number in range(50) for token in plan.request(number).prompt]
    assert min(ids) == 0
    assert max(ids) == below - 1


def test_warm_up_meets_every_prefix_first_with_tails_of_its_own(workload: Workload) -> None:
    plan = RequestPlan(workload, 7, 11, 512)
    window_prefixes = {tuple(plan.request(n).prompt[:32]) for n in range(50)}
    assert {tuple(plan.warm_up_request(n).prompt[:32]) for n in range(3)} == window_prefixes
    assert tuple(plan.warm_up_request(10).prompt[:32]) in window_prefixes
    tails = [
        tuple(make(n).prompt[32:48])
        for make in (plan.request, plan.ramp_request, plan.warm_up_request)
        for n in range(40)
    ]
    assert len(set(tails)) == len(tails)


def test_a_plain_workload_has_no_prefix(make_workload: MakeWorkload) -> None:
    plan = RequestPlan(make_workload(prompt_tokens={"kind": "fixed", "tokens": 9}), 7, 11, 512)
    assert plan.shared_prefixes == 0
    assert len(plan.request(0).prompt) == 9


def test_requests_stay_what_they_were() -> None:
    """Records of old studies name seeds alone: another generator would change what they stand for."""
    workload = Workload.model_validate(
        {
            "name": "frozen",
            "arrivals": {"kind": "closed_loop", "in_flight": 1},
            "prompt_tokens": {"kind": "uniform", "low": 4, "high": 9},
            "output_tokens": {"kind": "uniform", "low": 1, "high": 99},
            "warmup": {"requests": 1, "max_s": 1},
            "window": {"min_s": 1, "max_s": 1, "min_requests": 1},
        }
    )
    request = RequestPlan(workload, 1, 2, 512).request(0)
    assert (request.prompt, request.output_tokens) == ([64, 226, 15, 50, 140, 255, 43, 251], 88)
