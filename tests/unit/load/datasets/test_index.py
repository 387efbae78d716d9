"""Files of requests: what is right is found again row by row, and what is wrong is named with file and line."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimizer.core.errors import InputError
from optimizer.load.datasets import DatasetIndex, RowNeeds, index_of
from optimizer.load.planned import ChatMessage
from optimizer.load.sources import Columns, JsonlSource, ShareGptSource, Source, TraceSource

NEEDS = RowNeeds(output_tokens=True, chat=False)
GOOD = '{"prompt": "hello there", "output_tokens": 5}'
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes | list[Any], name: str = "data.jsonl") -> str:
        path = tmp_path / name
        if isinstance(content, list):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def jsonl(path: str, needs: RowNeeds = NEEDS, **more: Any) -> DatasetIndex:
    return index_of(JsonlSource(kind="jsonl", path=path, **more), needs)


def trace(path: str, **columns: str) -> DatasetIndex:
    return index_of(TraceSource(kind="trace", path=path, columns=Columns(**columns)), NEEDS)


def test_rows_come_back_as_they_are(write: Write) -> None:
    lines = [GOOD, "", '{"prompt": [1, 2, 300], "output_tokens": 7, "id": "x"}', '  {"output_tokens":1,"prompt":"é"}\r']
    index = jsonl(write("\n".join(lines)))
    assert len(index) == 3
    assert [index.row(n).prompt for n in range(3)] == ["hello there", [1, 2, 300], "é"]
    assert [index.row(n).output_tokens for n in range(3)] == [5, 7, 1]
    assert index.prompt_tokens.tolist() == [3, 3, 1], "eleven bytes are guessed to be three tokens"
    assert (index.highest_token_id, index.has_text, index.has_bare_lengths) == (300, True, False)


def test_messages_go_to_chat(write: Write) -> None:
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "why?"}]
    path = write(json.dumps({"prompt": messages, "output_tokens": 4}))
    row = jsonl(path, RowNeeds(output_tokens=True, chat=True)).row(0)
    assert row.prompt == (ChatMessage("system", "be short"), ChatMessage("user", "why?"))
    with pytest.raises(InputError, match="line 1: prompt: messages need endpoint chat"):
        jsonl(path)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"prompt": "a", "output_tokens": 5', "this is not JSON"),
        ("[1]", "is no JSON object"),
        ("null", "is no JSON object"),
        ('{"prompts": "a", "output_tokens": 5}', "prompt is missing; did you mean it by prompts?"),
        ('{"prompt": "", "output_tokens": 5}', "prompt: it is empty"),
        ('{"prompt": 3, "output_tokens": 5}', "prompt: 3 is neither text nor token ids nor messages"),
        ('{"prompt": [], "output_tokens": 5}', "is neither text"),
        ('{"prompt": [1, -2], "output_tokens": 5}', "is neither text"),
        ('{"prompt": [true], "output_tokens": 5}', "is neither text"),
        ('{"prompt": [1, "b"], "output_tokens": 5}', "is neither text"),
        ('{"prompt": "\\ud800", "output_tokens": 5}', "half of a surrogate pair"),
        ('{"prompt": "a"}', "output_tokens is missing"),
        ('{"prompt": "a", "output_token": 5}', "output_tokens is missing; did you mean it by output_token?"),
        ('{"prompt": "a", "output_tokens": 0}', "output_tokens: 0 is no number of tokens"),
        ('{"prompt": "a", "output_tokens": 2.5}', "output_tokens: 2.5 is no number of tokens"),
        ('{"prompt": "a", "output_tokens": true}', "output_tokens: True is no number of tokens"),
        ('{"prompt": "a", "output_tokens": NaN}', "NaN is no JSON number"),
        ('{"prompt": [1, 2], "prompt_tokens": 3, "output_tokens": 1}', "3, and the prompt has 2 token ids"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("before", [0, 3])
def test_a_wrong_row_is_named_by_its_line(write: Write, row: str, words: str, before: int) -> None:
    path = write("\n".join([*[GOOD] * before, row, GOOD]))
    with pytest.raises(InputError) as caught:
        jsonl(path)
    assert caught.value.message.startswith(f"{path}: line {before + 1}: ")
    assert words in caught.value.message


@pytest.mark.parametrize("line", [1, 100_000])
def test_a_corrupt_line_is_found_wherever_it_is(write: Write, line: int) -> None:
    path = write("\n".join([*[GOOD] * (line - 1), '{"prompt": "a', GOOD]))
    with pytest.raises(InputError, match=f"line {line}: this is not JSON: Unterminated string"):
        jsonl(path)


def test_text_that_is_not_utf8_is_named_by_line_and_byte(write: Write) -> None:
    path = write(GOOD.encode() + b'\n{"prompt": "\xff"}')
    with pytest.raises(InputError, match=r"line 2: this is not UTF-8 text \(byte 13 of the line\)"):
        jsonl(path)


@pytest.mark.parametrize("content", [b"", b"\n \n\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(write: Write, content: bytes) -> None:
    with pytest.raises(InputError, match="the file has no requests, it is empty"):
        jsonl(write(content))


def test_a_byte_order_mark_is_no_part_of_the_first_row(write: Write) -> None:
    assert jsonl(write(b"\xef\xbb\xbf" + GOOD.encode())).row(0).prompt == "hello there"


def test_a_packed_file_is_read_like_a_plain_one(write: Write) -> None:
    lines = "\n".join(f'{{"prompt": "number {n}", "output_tokens": {n + 1}}}' for n in range(500))
    plain, packed = jsonl(write(lines)), jsonl(write(gzip.compress(lines.encode()), "data.jsonl.gz"))
    assert [packed.row(n) for n in range(500)] == [plain.row(n) for n in range(500)]
    assert packed.sha256 != plain.sha256


@pytest.mark.parametrize("content", [b"plain text", gzip.compress(b"x" * 9999)[:-12]], ids=["plain text", "cut short"])
def test_what_is_no_whole_gzip_file_is_refused(write: Write, content: bytes) -> None:
    with pytest.raises(InputError, match="not a whole gzip file"):
        jsonl(write(content, "data.jsonl.gz"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.jsonl: the file cannot be read: No such file"):
        jsonl(str(tmp_path / "nothing.jsonl"))
    with pytest.raises(InputError, match="Is a directory"):
        jsonl(str(tmp_path))


def test_only_the_wanted_rows_are_read(write: Write) -> None:
    path = write("\n".join([GOOD, GOOD, "broken"]))
    assert len(jsonl(path, rows=2)) == 2
    with pytest.raises(InputError, match="line 3"):
        jsonl(path)


def test_a_file_is_read_again_only_when_it_has_changed(write: Write) -> None:
    path = write(GOOD)
    first = jsonl(path)
    assert jsonl(path) is first
    write(GOOD + "\n" + GOOD)
    os.utime(path, ns=(1, 1))
    second = jsonl(path)
    assert (len(second), second.sha256 != first.sha256) == (2, True)


def test_a_file_that_is_replaced_while_in_use_is_not_mixed_up(write: Write) -> None:
    path = write(GOOD)
    index = jsonl(path)
    Path(path).rename(path + ".old")
    write('{"prompt": "other text!", "output_tokens": 5}')
    assert index.row(0).prompt == "hello there"
    with Path(path + ".old").open("r+b") as file:
        file.truncate(4)
    with pytest.raises(InputError, match="has changed while it was in use"):
        index.row(0)


def test_the_index_holds_no_texts(write: Write) -> None:
    rows = 2000
    path = write("\n".join([json.dumps({"prompt": "x" * 5000, "output_tokens": 5})] * rows))
    tracemalloc.start()
    index = jsonl(path)
    _, peak = tracemalloc.get_traced_memory()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index) == rows
    assert held < 200 * rows
    assert peak < 6 * 2**20, "ten megabytes of text pass through pieces of one"


def test_a_conversation_is_its_first_question_or_all_of_them(write: Write) -> None:
    said = [("human", "q1"), ("gpt", "a1"), ("human", "q2"), ("gpt", "a2 is longer"), ("human", "q3")]
    begun_by_the_model = [("gpt", "hello"), ("human", "q")]
    with_a_system_prompt = [("system", "s"), ("user", "u"), ("assistant", "v")]
    conversations = [
        {"id": "x", "conversations": [{"from": who, "value": text} for who, text in talk]}
        for talk in (said, [], begun_by_the_model, with_a_system_prompt)
    ]
    source: Source = ShareGptSource(kind="sharegpt", path=write(conversations, "data.json"))
    one = index_of(source, NEEDS)
    assert (len(one), one.left_out) == (2, 2)
    assert (one.row(0).prompt, one.row(0).answers) == ("q1", ("a1",))
    assert one.row(1).prompt == "u"
    all_turns = index_of(source, RowNeeds(output_tokens=True, chat=False, turns=9))
    assert (all_turns.row(0).questions, all_turns.row(0).answers) == (("q1", "q2"), ("a1", "a2 is longer"))
    assert all_turns.turns.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("conversation", "words"),
    [
        ({}, "conversations is missing"),
        ({"conversation": []}, "did you mean it by conversation?"),
        ({"conversations": "x"}, "conversations: 'x' is no list"),
        ({"conversations": ["x"]}, "conversations.0: 'x' is no object"),
        ({"conversations": [{"from": "human", "value": 3}]}, "conversations.0.value: 3 is no text"),
        ({"conversations": [{"value": "q"}]}, "conversations.0.from: None is no text"),
        ("text", "is no JSON object"),
    ],
)
def test_a_wrong_conversation_is_named_by_its_line(write: Write, conversation: Any, words: str) -> None:
    good = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    path = write(f"[\n{json.dumps(good)},\n{json.dumps(conversation)}\n]", "data.json")
    with pytest.raises(InputError) as caught:
        index_of(ShareGptSource(kind="sharegpt", path=path), NEEDS)
    assert caught.value.message.startswith(f"{path}: line 3: ")
    assert words in caught.value.message


def test_conversations_of_which_none_can_be_asked_are_no_requests(write: Write) -> None:
    path = write([{"conversations": []}] * 3, "data.json")
    with pytest.raises(InputError, match="of 3 conversations none begins with a question"):
        index_of(ShareGptSource(kind="sharegpt", path=path), NEEDS)


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:05.5,110,27

2023-11-16 18:17:04.0319600,3180,8
"""


def test_a_trace_as_csv_goes_by_time(write: Write) -> None:
    path = write(AZURE, "trace.csv")
    index = trace(path, timestamp="TIMESTAMP", prompt_tokens="ContextTokens", output_tokens="GeneratedTokens")
    assert index.timestamps_s is not None
    assert (index.timestamps_s - index.timestamps_s[0]).round(3).tolist() == [0.0, 0.052, 1.52]
    assert (index.prompt_tokens.tolist(), index.output_tokens.tolist()) == ([4808, 3180, 110], [10, 8, 27])
    assert index.row(1).prompt is None
    assert index.row(1).prompt_tokens == 3180


def test_a_trace_as_json_lines_may_have_prompts(write: Write) -> None:
    lines = [
        '{"timestamp_s": 2, "prompt_tokens": 9, "output_tokens": 3}',
        '{"timestamp_s": 0.5, "prompt": "hi", "output_tokens": 4}',
    ]
    index = trace(write("\n".join(lines)))
    assert [index.row(n).prompt for n in range(2)] == ["hi", None]
    assert (index.has_text, index.has_bare_lengths) == (True, True)


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("when,prompt_tokens,output_tokens\n1,2,3", 1, "the head has no column 'timestamp_s'"),
        ("timestamp_s,prompt_tokens,output_tokens\n1,2,3\n\n1,2", 4, "2 cells, and the head has 3"),
        ("timestamp_s,prompt_tokens,output_tokens\nnoon,2,3", 2, "is neither seconds nor a date"),
        ("timestamp_s,prompt_tokens,output_tokens\nnan,2,3", 2, "is neither seconds nor a date"),
        ("timestamp_s,prompt_tokens,output_tokens\n1,0,3", 2, "prompt_tokens: '0' is no number of tokens"),
        ("timestamp_s,prompt_tokens,output_tokens\n1,2,x", 2, "output_tokens: 'x' is no number of tokens"),
        ('timestamp_s,prompt_tokens,output_tokens\n1,"2,3', 2, "2 cells, and the head has 3"),
    ],
)
def test_a_wrong_trace_is_named_by_its_line(write: Write, content: str, line: int, words: str) -> None:
    path = write(content, "trace.csv")
    with pytest.raises(InputError) as caught:
        trace(path)
    assert caught.value.message.startswith(f"{path}: line {line}: ")
    assert words in caught.value.message
