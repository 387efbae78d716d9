"""What must hold of the scheduler whatever arrives: blocks are conserved, limits kept, and every request ends."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.errors import InputError
from optimizer.engine.simulated.scheduler import Scheduler
from optimizer.engine.simulated.step import ScheduledStep, SchedulerLimits, StepOutput
from optimizer.engine.simulated.step_time import OVERHEAD_S, StepTimeModel

BLOCK = 4
MAX_MODEL_LEN = 32
STEP_LIMIT = 5000


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt: list[int]
    max_tokens: int
    aborted_after: int | None


arrivals = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 30),
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=MAX_MODEL_LEN - 1),
        max_tokens=st.integers(1, MAX_MODEL_LEN),
        aborted_after=st.none() | st.integers(0, 20),
    ),
    max_size=12,
)
limits = st.builds(
    lambda seqs, extra, blocks, caching, drafted, acceptance: SchedulerLimits(
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + extra,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK,
        num_gpu_blocks=1 + MAX_MODEL_LEN // BLOCK + blocks,
        enable_prefix_caching=caching,
        speculative_tokens=drafted,
        acceptance=acceptance,
    ),
    st.integers(1, 8),
    st.integers(0, 40),
    st.integers(0, 12),
    st.booleans(),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.5, 1.0]),
)


def make(**changes: float) -> Scheduler:
    defaults: dict[str, float] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_model_len": MAX_MODEL_LEN,
        "block_size": BLOCK,
        "num_gpu_blocks": 64,
    }
    return Scheduler(SchedulerLimits(**(defaults | changes)), StepTimeModel())  # type: ignore[arg-type]


def run_step(scheduler: Scheduler) -> tuple[ScheduledStep, list[StepOutput]]:
    step = scheduler.schedule()
    return step, scheduler.complete(step)


def drain(scheduler: Scheduler) -> list[StepOutput]:
    outputs: list[StepOutput] = []
    for _ in range(STEP_LIMIT):
        if not scheduler.has_work:
            return outputs
        outputs += run_step(scheduler)[1]
    raise AssertionError("the scheduler does not come to an end")


def play(limits: SchedulerLimits, arrivals: list[Arrival]) -> tuple[Scheduler, dict[str, list[int]]]:
    """Runs a whole script of arrivals and aborts, and checks after every step what must hold at any time."""
    scheduler = Scheduler(limits, StepTimeModel())
    tokens: dict[str, list[int]] = {}
    clock = 0
    while clock <= 50 or scheduler.has_work:
        assert clock < STEP_LIMIT, "the scheduler does not come to an end"
        for number, arrival in enumerate(arrivals):
            if arrival.step == clock:
                tokens[f"r{number}"] = []
                scheduler.add(f"r{number}", arrival.prompt, arrival.max_tokens)
            if arrival.aborted_after is not None and arrival.step + arrival.aborted_after == clock:
                scheduler.abort(f"r{number}")
        step = scheduler.schedule()
        assert sum(step.tokens.values()) <= limits.max_num_batched_tokens
        assert step.tokens or not scheduler.has_work, "a step with work to do computes something"
        for output in scheduler.complete(step):
            tokens[output.request_id] += output.token_ids
        assert len(scheduler.running) <= limits.max_num_seqs
        check_blocks(scheduler)
        clock += 1
    return scheduler, tokens


def check_blocks(scheduler: Scheduler) -> None:
    held = {block for sequence in scheduler.running for block in sequence.blocks}
    assert not any(sequence.blocks or sequence.computed_tokens for sequence in scheduler.waiting)
    assert len(held) + scheduler.pool.num_free == scheduler.limits.num_gpu_blocks - 1
    assert 0 not in held, "the null block belongs to nobody"
    for sequence in scheduler.running:
        assert len(set(sequence.blocks)) == len(sequence.blocks)
        assert len(sequence.blocks) * BLOCK >= sequence.computed_tokens


@given(limits, arrivals)
def test_limits_hold_at_every_step_and_every_request_ends(limits, arrivals):
    scheduler, tokens = play(limits, arrivals)
    assert scheduler.pool.num_free == limits.num_gpu_blocks - 1
    for number, arrival in enumerate(arrivals):
        wanted = min(arrival.max_tokens, MAX_MODEL_LEN - len(arrival.prompt))
        if arrival.aborted_after is None:
            assert len(tokens[f"r{number}"]) == wanted
        else:
            assert len(tokens[f"r{number}"]) <= wanted
    stats = scheduler.stats
    assert stats.finished_requests + stats.aborted_requests == len(arrivals)
    assert stats.generation_tokens == sum(map(len, tokens.values()))


@given(limits, arrivals)
def test_same_arrivals_give_the_same_tokens_and_counters(limits, arrivals):
    first, first_tokens = play(limits, arrivals)
    second, second_tokens = play(limits, arrivals)
    assert (first_tokens, first.stats) == (second_tokens, second.stats)


@given(limits, arrivals)
def test_the_tokens_of_a_request_do_not_depend_on_its_neighbours(limits, arrivals):
    _, together = play(limits, arrivals)
    for number, arrival in enumerate(arrivals):
        if arrival.aborted_after is None:
            scheduler = make()
            scheduler.add("alone", arrival.prompt, arrival.max_tokens)
            alone = [token for output in drain(scheduler) for token in output.token_ids]
            assert alone == together[f"r{number}"]


def test_a_pool_smaller_than_one_request_is_refused():
    with pytest.raises(InputError, match="28 tokens cannot hold max_model_len=32"):
        make(num_gpu_blocks=8)


@pytest.mark.parametrize(("prompt", "max_tokens"), [([], 1), ([1] * MAX_MODEL_LEN, 1), ([1], 0)])
def test_a_request_without_room_is_refused(prompt, max_tokens):
    scheduler = make()
    with pytest.raises(InputError, match="no room"):
        scheduler.add("r", prompt, max_tokens)
    assert not scheduler.has_work


def test_a_long_prompt_is_prefilled_in_chunks_beside_decodes():
    scheduler = make(max_num_batched_tokens=8)
    scheduler.add("short", [1, 2], 20)
    run_step(scheduler)
    scheduler.add("long", [3] * 20, 1)
    steps = [run_step(scheduler)[0] for _ in range(3)]
    assert [step.tokens for step in steps] == [
        {"short": 1, "long": 7},
        {"short": 1, "long": 7},
        {"short": 1, "long": 6},
    ]
    assert [(step.decode_seqs, step.prefill_tokens) for step in steps] == [(1, 7), (1, 7), (1, 6)]


def test_requests_beyond_max_num_seqs_wait_in_order():
    scheduler = make(max_num_seqs=2)
    for name in ("a", "b", "c"):
        scheduler.add(name, [1, 2, 3], 2)
    run_step(scheduler)
    assert (scheduler.stats.running, scheduler.stats.waiting) == (2, 1)
    assert [output.request_id for output in drain(scheduler)] == ["a", "b", "c", "c"]


def test_the_latest_sequence_is_preempted_and_recomputed():
    scheduler = make(num_gpu_blocks=9, enable_prefix_caching=False)
    scheduler.add("old", [1] * 15, 10)
    scheduler.add("new", [2] * 15, 10)
    scheduler.add("later", [3], 10)
    run_step(scheduler)
    assert scheduler.stats.kv_cache_usage == 1.0
    preempting, _ = [run_step(scheduler) for _ in range(2)][-1]
    assert preempting.tokens == {"old": 1}
    assert scheduler.stats.preemptions == 1
    assert [sequence.request_id for sequence in scheduler.waiting] == ["new", "later"]
    outputs = drain(scheduler)
    assert {output.request_id for output in outputs if output.finished} == {"old", "new", "later"}


def test_shared_full_blocks_are_computed_once():
    scheduler = make()
    scheduler.add("first", [*range(10), 90], 1)
    drain(scheduler)
    scheduler.add("second", [*range(10), 91], 1)
    step, outputs = run_step(scheduler)
    assert step.tokens == {"second": 3}
    assert outputs[0].cached_tokens == 8
    assert (scheduler.stats.prefix_cache_hits, scheduler.stats.prefix_cache_queries) == (8, 22)


def test_the_last_prompt_token_is_always_computed():
    scheduler = make()
    scheduler.add("first", list(range(8)), 1)
    drain(scheduler)
    scheduler.add("again", list(range(8)), 1)
    step, _ = run_step(scheduler)
    assert step.tokens == {"again": 4}


def test_the_least_recently_freed_blocks_lose_their_content_first():
    scheduler = make(num_gpu_blocks=9)
    for name, start in (("old", 100), ("young", 200)):
        scheduler.add(name, list(range(start, start + 13)), 1)
        drain(scheduler)
    scheduler.add("filler", list(range(300, 313)), 1)
    drain(scheduler)
    cached = {}
    for name, start in (("young", 200), ("old", 100)):
        scheduler.add(name, list(range(start, start + 13)), 1)
        cached[name] = drain(scheduler)[0].cached_tokens
    assert cached == {"young": 12, "old": 0}


def test_the_end_of_a_prefix_is_evicted_before_its_beginning():
    scheduler = make(num_gpu_blocks=9)
    for start, length in ((100, 13), (300, 24)):
        scheduler.add(f"from {start}", list(range(start, start + length)), 1)
        drain(scheduler)
    scheduler.add("again", list(range(100, 113)), 1)
    assert drain(scheduler)[0].cached_tokens == 8


def test_a_reset_empties_the_prefix_cache_but_not_under_a_live_request():
    scheduler = make()
    scheduler.add("live", list(range(9)), 2)
    run_step(scheduler)
    assert scheduler.reset_prefix_cache() is False
    drain(scheduler)
    assert scheduler.reset_prefix_cache() is True
    scheduler.add("after", list(range(9)), 1)
    assert drain(scheduler)[0].cached_tokens == 0


def test_only_requests_of_one_salt_share_what_is_cached():
    scheduler = make()
    hits = []
    for number, salt in enumerate(["", "a", "a", "b", ""]):
        scheduler.add(f"r{number}", list(range(9)), 1, salt)
        hits.append(drain(scheduler)[0].cached_tokens)
    assert hits == [0, 0, 8, 0, 8]


def test_without_prefix_caching_nothing_is_asked_or_hit():
    scheduler = make(enable_prefix_caching=False)
    for name in ("first", "again"):
        scheduler.add(name, list(range(9)), 1)
        assert drain(scheduler)[0].cached_tokens == 0
    assert scheduler.stats.prefix_cache_queries == 0


def test_a_draft_that_is_all_right_gives_all_its_tokens_in_one_step():
    scheduler = make(speculative_tokens=3, acceptance=1.0)
    scheduler.add("r", [1, 2], 9)
    outputs = drain(scheduler)
    assert [len(output.token_ids) for output in outputs] == [1, 4, 4]
    stats = scheduler.stats
    assert (stats.drafts, stats.draft_tokens, stats.accepted_tokens) == (2, 6, 6)
    assert stats.accepted_per_position == [2, 2, 2]


def test_a_draft_never_reaches_beyond_the_last_token_of_its_request():
    scheduler = make(speculative_tokens=5, acceptance=1.0)
    scheduler.add("r", [1], 4)
    assert [len(output.token_ids) for output in drain(scheduler)] == [1, 3]
    assert scheduler.stats.draft_tokens == 2


def test_the_share_of_right_drafts_is_the_one_asked_for():
    scheduler = make(speculative_tokens=1, acceptance=0.6, max_model_len=4000, num_gpu_blocks=2000)
    for number in range(10):
        scheduler.add(f"r{number}", [number + 1], 400)
    drain(scheduler)
    stats = scheduler.stats
    assert stats.accepted_tokens / stats.draft_tokens == pytest.approx(0.6, abs=0.04)


def test_drafts_use_up_the_token_budget_and_cost_time():
    plain, drafting = make(), make(speculative_tokens=4, acceptance=0.0)
    for scheduler in (plain, drafting):
        for name in ("a", "b"):
            scheduler.add(name, [1], 5)
        run_step(scheduler)
    plain_step, drafting_step = plain.schedule(), drafting.schedule()
    assert (plain_step.tokens, plain_step.drafts) == ({"a": 1, "b": 1}, {})
    assert drafting_step.drafts == {"a": 3, "b": 3}
    assert drafting_step.tokens == {"a": 4, "b": 4}
    assert drafting_step.duration_s > plain_step.duration_s
    assert (drafting_step.decode_seqs, drafting_step.prefill_tokens) == (2, 0)


def test_a_step_names_whom_it_admits_for_the_first_time_and_whom_it_preempts():
    scheduler = make(num_gpu_blocks=9, enable_prefix_caching=False)
    for name, token in (("old", 1), ("new", 2)):
        scheduler.add(name, [token] * 15, 10)
    steps = []
    while scheduler.has_work:
        steps.append(run_step(scheduler)[0])
    assert [name for step in steps for name in step.admitted] == ["old", "new"]
    assert [name for step in steps for name in step.preempted] == ["new"]


def test_a_step_takes_longer_the_more_it_does():
    model = StepTimeModel()
    idle = model.step_s(prefill_tokens=0, decode_seqs=0, kv_tokens_read=0)
    assert idle == OVERHEAD_S
    for more in ({"prefill_tokens": 1}, {"decode_seqs": 1}, {"kv_tokens_read": 1}, {"draft_tokens": 1}):
        load = {"prefill_tokens": 0, "decode_seqs": 0, "kv_tokens_read": 0} | more
        assert model.step_s(**load) > idle
        assert StepTimeModel(speed=10).step_s(**load) == pytest.approx(model.step_s(**load) / 10)
    halved = StepTimeModel(kv_element_bytes=1).step_s(prefill_tokens=0, decode_seqs=0, kv_tokens_read=1000)
    assert halved - idle == pytest.approx(
        (model.step_s(prefill_tokens=0, decode_seqs=0, kv_tokens_read=1000) - idle) / 2
    )
    passes = StepTimeModel(draft_pass_s=1e-3).step_s(prefill_tokens=0, decode_seqs=0, kv_tokens_read=0, draft_passes=3)
    assert passes == pytest.approx(idle + 3e-3)
