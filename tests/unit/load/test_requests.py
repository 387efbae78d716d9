"""Common random numbers: what must be equal between runs is equal, and what must differ differs."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimizer.config import load_space
from optimizer.config.models import package_folder
from optimizer.core.errors import InputError
from optimizer.load import RequestPlan, Workload
from optimizer.load.tokenizer import ModelTokenizer, load_tokenizer

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
    ids = [token for number in range(50) for token in plan.request(number).prompt if isinstance(token, int)]
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


@pytest.mark.parametrize(
    ("space", "digest"),
    [
        ("tiny-cpu", "d9a6885466a9d1e31857f457215f96a920b430a20c315f7aa71bf36036f489a4"),
        ("qwen13b", "6a2a2d561ce7d29ad00babcfaaa2edfa5e6339ec18b88245937a8614f3ab04d3"),
        ("examples/chat-8b.yaml", "e31a23d6e3a846e6ce3e5fdbc68a70c23bd87a469e0a0a4c3e9b27d34ca573cf"),
    ],
)
def test_workloads_of_old_send_what_they_sent(space: str, digest: str) -> None:
    """Every request of window, ramp and warm-up, as the first release made it."""
    path = Path(__file__).parents[3] / space
    workload = load_space(str(path) if path.is_file() else space).workload
    plan = RequestPlan(workload, 7, 11, 512)
    seen = hashlib.sha256()
    for make in (plan.request, plan.ramp_request, plan.warm_up_request):
        for number in range(40):
            request = make(number)
            assert (request.exact, dict(request.extra_body), request.session, request.refused) == (True, {}, None, None)
            seen.update(json.dumps([request.prompt, request.output_tokens]).encode())
    assert seen.hexdigest() == digest


@pytest.fixture
def sessions(make_workload: MakeWorkload) -> Workload:
    return make_workload(
        prompt_tokens="20-60",
        output_tokens="3-9",
        shared_prefix={"prefixes": 3, "tokens": 32},
        sessions={"turns": "1-4", "think_time": {"kind": "exponential", "mean_s": 2, "max_s": 5}},
    )


def test_a_turn_repeats_what_was_said_and_asks_anew(sessions: Workload) -> None:
    plan = RequestPlan(sessions, 7, 11, 512)
    first = plan.request(5)
    second = plan.request(5, [[1, 2, 3]])
    third = plan.request(5, [[1, 2, 3], [4]])
    assert second.prompt[: len(first.prompt) + 3] == [*first.prompt, 1, 2, 3]
    assert third.prompt[: len(second.prompt) + 1] == [*second.prompt, 4]
    assert 20 <= len(third.prompt) - len(second.prompt) - 1 <= 60
    assert [(r.session, r.turn) for r in (first, second, third)] == [(5, 0), (5, 1), (5, 2)]
    assert third.prompt_tokens == len(third.prompt)


def test_only_the_last_turns_are_repeated(make_workload: MakeWorkload) -> None:
    workload = make_workload(sessions={"turns": 4, "keep_turns": 1}, shared_prefix={"prefixes": 1, "tokens": 10})
    plan = RequestPlan(workload, 7, 11, 512)
    first, second = plan.request(0), plan.request(0, [[9]])
    third = plan.request(0, [[9], [8, 8]])
    asked_second = second.prompt[len(first.prompt) + 1 :]
    assert third.prompt[: 10 + len(asked_second) + 2] == [*first.prompt[:10], *asked_second, 8, 8]


def test_turns_and_think_times_are_the_study_seeds(sessions: Workload) -> None:
    def turns(plan: RequestPlan, number: int) -> list[float]:
        history: list[list[int]] = []
        times: list[float] = []
        while (request := plan.request(number, history)).think_s is not None:
            times.append(request.think_s)
            history.append([0] * request.output_tokens)
        return times

    one, other = RequestPlan(sessions, 7, 11, 512), RequestPlan(sessions, 7, 12, 512)
    drawn = [turns(one, number) for number in range(60)]
    assert drawn == [turns(other, number) for number in range(60)]
    assert {len(times) for times in drawn} == {0, 1, 2, 3}
    assert all(0 <= time <= 5 for times in drawn for time in times)


def test_warm_up_requests_are_single_ones(sessions: Workload) -> None:
    request = RequestPlan(sessions, 7, 11, 512).warm_up_request(4)
    assert (request.session, request.think_s) == (None, None)


def test_ids_stand_in_for_an_answer_of_text(sessions: Workload) -> None:
    plan = RequestPlan(sessions, 7, 11, 512)
    first, second = plan.request(5), plan.request(5, ["some words"])
    stood_in = second.prompt[len(first.prompt) : len(first.prompt) + first.output_tokens]
    assert len(stood_in) == first.output_tokens
    assert plan.request(5, ["other words"]).prompt == second.prompt


def test_a_request_beyond_the_context_is_refused_and_counted(make_workload: MakeWorkload) -> None:
    workload = make_workload(prompt_tokens="0.5:50,0.5:100", output_tokens=20)
    plan = RequestPlan(workload, 7, 11, 512, max_model_len=100)
    requests = [plan.request(number) for number in range(40)]
    long = [request for request in requests if request.prompt_tokens == 100]
    assert 5 < len(long) < 35
    for request in requests:
        expected = "longer than max-model-len: 100 + 20 of 100 tokens" if request in long else None
        assert request.refused == expected
    assert (plan.too_long.requests, plan.too_long.longest_tokens) == (len(long), 120)
    plan.request(0)
    plan.ramp_request(0)
    assert plan.too_long.requests == len(long), "each request of the window counts once, and no other"
    assert RequestPlan(workload, 7, 11, 512, max_model_len=120).request(0).refused is None


def test_an_answer_of_a_schema_ends_by_itself(make_workload: MakeWorkload) -> None:
    schema = {"type": "object", "required": ["n"]}
    request = RequestPlan(make_workload(structured_output={"json_schema": schema}), 7, 11, 512).request(0)
    assert not request.exact
    assert request.extra_body == {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": schema},
        }
    }


@pytest.fixture
def tokenizer() -> ModelTokenizer:
    pytest.importorskip("tokenizers")
    return load_tokenizer(str(package_folder("models") / "tiny-kv"))


def test_chat_has_the_shared_prefix_as_its_system_message(
    make_workload: MakeWorkload, tokenizer: ModelTokenizer
) -> None:
    workload = make_workload(endpoint="chat", shared_prefix={"prefixes": 1, "tokens": 30}, sessions={"turns": 2})
    plan = RequestPlan(workload, 7, 11, 512, tokenizer=tokenizer)
    second = plan.request(0, ["the answer"])
    roles = [message.role for message in second.prompt]
    assert roles == ["system", "user", "assistant", "user"]
    assert tokenizer.count(second.prompt[0].content) == 30
    assert second.prompt[2].content == "the answer"
    assert second.prompt[:2] == plan.request(0).prompt
    assert second.prompt_tokens is None, "what the chat template adds only the engine knows"
    assert plan.request(0).prompt != RequestPlan(workload, 7, 12, 512, tokenizer=tokenizer).request(0).prompt


def test_text_has_the_drawn_lengths(make_workload: MakeWorkload, tokenizer: ModelTokenizer) -> None:
    shapes = {"prompt_tokens": "20-60", "shared_prefix": {"prefixes": 2, "tokens": 16}}
    texts = RequestPlan(make_workload(content="text", **shapes), 7, 11, 512, tokenizer=tokenizer)
    ids = RequestPlan(make_workload(**shapes), 7, 11, 512)
    for number in range(10):
        assert tokenizer.count(str(texts.request(number).prompt)) == len(ids.request(number).prompt)


def test_text_needs_a_tokenizer(make_workload: MakeWorkload) -> None:
    with pytest.raises(InputError, match="tokenizer missing: workload test needs the model's"):
        RequestPlan(make_workload(content="text"), 7, 11, 512)


@pytest.fixture
def of_file(make_workload: MakeWorkload, tmp_path: Path) -> MakeWorkload:
    """A workload whose requests are the given rows."""

    def make(rows: list[dict[str, Any]], kind: str = "jsonl", **parts: Any) -> Workload:
        path = tmp_path / f"{kind}.jsonl"
        path.write_text(
            json.dumps(rows) if kind == "sharegpt" else "\n".join(json.dumps(row) for row in rows), encoding="utf-8"
        )
        source = {"kind": kind, "path": str(path)}
        return make_workload(**{"source": source, "prompt_tokens": None, "output_tokens": None, **parts})

    return make


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"question {number}", "output_tokens": number + 1} for number in range(count)]


def test_rows_come_in_the_study_seeds_order(of_file: MakeWorkload) -> None:
    workload = of_file(numbered(50))
    one, other, third = (RequestPlan(workload, seed, run, 512) for seed, run in ((7, 1), (7, 2), (8, 1)))
    prompts = [one.request(number).prompt for number in range(45)]
    assert prompts == [other.request(number).prompt for number in range(45)]
    assert prompts != [third.request(number).prompt for number in range(45)]
    assert len(set(prompts)) == 45
    for number in range(45):
        request = one.request(number)
        assert request.prompt == f"question {request.output_tokens - 1}"


def test_warm_up_and_ramp_have_rows_of_their_own(of_file: MakeWorkload) -> None:
    plan = RequestPlan(of_file(numbered(50)), 7, 1, 512)
    window = {plan.request(number).prompt for number in range(200)}
    before = {make(number).prompt for make in (plan.warm_up_request, plan.ramp_request) for number in range(50)}
    assert (len(window), len(before), window & before) == (45, 5, set())


def test_runs_do_not_share_what_they_cache(of_file: MakeWorkload) -> None:
    workload = of_file(numbered(50))
    one, other = RequestPlan(workload, 7, 0xA1, 512), RequestPlan(workload, 7, 0xA2, 512)
    assert one.request(0).extra_body == {"cache_salt": "a1"}
    assert other.request(0).extra_body == {"cache_salt": "a2"}
    assert {one.request(number).extra_body["cache_salt"] for number in range(45)} == {"a1"}, "one run shares within"
    assert one.warm_up_request(0).extra_body == {"cache_salt": "a1"}, "what warm-up leaves is for the window"
    assert one.request(45).prompt == one.request(0).prompt
    assert one.request(45).extra_body == {"cache_salt": "a1-1"}, "a second pass is not answered by the first"


def test_a_small_file_is_not_warmed_up_with_its_own_rows(of_file: MakeWorkload) -> None:
    plan = RequestPlan(of_file(numbered(3)), 7, 1, 512)
    salts = {make(0).extra_body["cache_salt"] for make in (plan.request, plan.ramp_request, plan.warm_up_request)}
    assert len(salts) == 3


def test_a_trace_goes_in_its_order(of_file: MakeWorkload) -> None:
    rows = [{"timestamp_s": 10 + number**2, "prompt_tokens": number + 1, "output_tokens": 2} for number in range(30)]
    workload = of_file(rows, "trace", arrivals={"kind": "trace", "speed": 2})
    plan = RequestPlan(workload, 7, 1, 512)
    assert [plan.request(number).prompt_tokens for number in range(30)] == list(range(1, 31))
    assert plan.recorded_offsets_s is not None
    assert plan.recorded_offsets_s.tolist() == [number**2 for number in range(30)]
    assert plan.request(0).extra_body == {}, "synthetic prompts differ from run to run anyway"
    assert plan.request(29).prompt != plan.request(59).prompt, "a second pass asks for the same lengths"
    assert RequestPlan(of_file(numbered(3)), 7, 1, 512).recorded_offsets_s is None


def test_a_drawn_length_stands_in_place_of_the_files(of_file: MakeWorkload) -> None:
    plan = RequestPlan(of_file([{"prompt": "q"}] * 5, output_tokens=33), 7, 1, 512)
    assert plan.request(0).output_tokens == 33


def test_ids_from_a_file_must_be_in_the_vocabulary(of_file: MakeWorkload) -> None:
    workload = of_file([{"prompt": [3, 512], "output_tokens": 2}])
    assert RequestPlan(workload, 7, 1, 513).request(0).prompt_tokens == 2
    with pytest.raises(InputError, match="token id 512 is beyond the 512 ids"):
        RequestPlan(workload, 7, 1, 512)


CONVERSATION = [("human", "q1"), ("gpt", "four"), ("human", "q2"), ("gpt", "seventeen"), ("human", "q3"), ("gpt", "x")]


def test_conversations_of_a_file_go_on_with_the_engines_answers(
    of_file: MakeWorkload, tokenizer: ModelTokenizer
) -> None:
    rows = [{"conversations": [{"from": who, "value": text} for who, text in CONVERSATION]}]
    workload = of_file(rows, "sharegpt", endpoint="chat", sessions={"turns": 5})
    plan = RequestPlan(workload, 7, 1, 512, tokenizer=tokenizer)
    second = plan.request(0, ["mine"])
    assert [message.content for message in second.prompt] == ["q1", "mine", "q2"]
    assert (plan.request(0).output_tokens, second.output_tokens) == (4, 9), "as long as the recorded answers"
    assert second.think_s == 0
    assert plan.request(0, ["a", "b"]).think_s is None, "the file has three questions"


def test_a_text_of_a_file_is_sent_as_ids_on_demand(of_file: MakeWorkload, tokenizer: ModelTokenizer) -> None:
    workload = of_file(numbered(1), content="token_ids")
    assert workload.needs_tokenizer
    request = RequestPlan(workload, 7, 1, 512, tokenizer=tokenizer).request(0)
    assert request.prompt == tokenizer.encode("question 0")


def test_a_long_text_of_a_file_is_refused(of_file: MakeWorkload, tokenizer: ModelTokenizer) -> None:
    workload = of_file([{"prompt": "x" * 200, "output_tokens": 10}])
    counted = RequestPlan(workload, 7, 1, 512, max_model_len=150, tokenizer=tokenizer)
    assert counted.request(0).refused == "longer than max-model-len: 200 + 10 of 150 tokens"
    assert RequestPlan(workload, 7, 1, 512, max_model_len=150).request(0).refused is None, "left to the engine"


@pytest.mark.parametrize(
    ("rows", "parts", "needed"),
    [
        ([{"prompt": "q", "output_tokens": 1}], {}, False),
        ([{"prompt": "q", "output_tokens": 1}], {"endpoint": "chat"}, False),
        ([{"prompt": "q", "output_tokens": 1}], {"shared_prefix": {"prefixes": 1, "tokens": 9}}, True),
        ([{"prompt": [1], "output_tokens": 1}], {"shared_prefix": {"prefixes": 1, "tokens": 9}}, False),
        ([{"prompt": "q", "output_tokens": 1}], {"content": "token_ids"}, True),
    ],
)
def test_a_tokenizer_is_asked_for_only_where_it_is_needed(
    of_file: MakeWorkload, rows: list[dict[str, Any]], parts: dict[str, Any], needed: bool
) -> None:
    assert of_file(rows, **parts).needs_tokenizer is needed


def test_another_process_makes_the_same_requests(of_file: MakeWorkload, sessions: Workload) -> None:
    for workload in (sessions, of_file(numbered(20))):
        plan = RequestPlan(workload, 7, 1, 512, max_model_len=60)
        copy = pickle.loads(pickle.dumps(plan))  # noqa: S301
        assert [copy.request(number) for number in range(9)] == [plan.request(number) for number in range(9)]


def test_the_identity_follows_the_files_content_and_not_its_place(of_file: MakeWorkload, tmp_path: Path) -> None:
    here = of_file(numbered(5), description="some words")
    path = Path(here.source.path)
    moved = here.model_copy(update={"source": here.source.model_copy(update={"path": str(tmp_path / "moved.jsonl")})})
    (tmp_path / "moved.jsonl").write_bytes(path.read_bytes())
    assert moved.identity() == here.identity()
    before = here.identity()
    path.write_bytes(path.read_bytes() + b"\n" + json.dumps(numbered(1)[0]).encode())
    assert here.identity()["source"]["sha256"] != before["source"]["sha256"]
    assert "description" not in before
