"""The file of samples."""

from __future__ import annotations

import csv
import gzip
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from optimizer.core.measurement import LoadResult
from optimizer.load import write_samples

NEVER = math.nan


@pytest.fixture
def result() -> LoadResult:
    return LoadResult(
        window_start_s=100.0,
        window_s=10.0,
        scheduled_s=np.array([100.0, 101.0, 102.0]),
        sent_s=np.array([100.001, 101.0, 102.0]),
        first_token_s=np.array([100.25, 101.5, NEVER]),
        last_token_s=np.array([101.0, 101.5, NEVER]),
        prompt_tokens=np.array([7, 8, 9]),
        output_tokens=np.array([4, 1, 0]),
        errors=(None, "short answer: 1 of 4 tokens", 'HTTP 503: {"a", "b"}'),
        itl_s=np.array([0.25, 0.25, 0.25]),
        window_output_tokens=5,
        window_requests=1,
    )


def read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_one_row_a_request_with_times_from_the_start_of_the_window(tmp_path: Path, result: LoadResult) -> None:
    path = tmp_path / "samples.csv.gz"
    write_samples(path, result)
    served, short, refused = read(path)
    assert served == {
        "request": "0",
        "scheduled_s": "0.000000",
        "sent_s": "0.001000",
        "first_token_s": "0.250000",
        "last_token_s": "1.000000",
        "prompt_tokens": "7",
        "output_tokens": "4",
        "ttft_ms": "250.000",
        "tpot_ms": "250.000",
        "e2e_ms": "1000.000",
        "error": "",
        "queue_ms": "1.000",
        "session": "",
        "turn": "0",
    }
    assert (short["tpot_ms"], short["error"]) == ("", "short answer: 1 of 4 tokens")
    assert (refused["first_token_s"], refused["ttft_ms"], refused["e2e_ms"]) == ("", "", "")
    assert refused["error"] == 'HTTP 503: {"a", "b"}'


def test_a_turn_of_a_conversation_is_told_with_its_place(tmp_path: Path, result: LoadResult) -> None:
    path = tmp_path / "samples.csv.gz"
    write_samples(path, replace(result, sessions=np.array([-1, 4, -6]), turns=np.array([0, 0, 1])))
    assert [(row["session"], row["turn"]) for row in read(path)] == [("", "0"), ("4", "0"), ("ramp-4", "1")]


def test_writing_leaves_one_file_and_equal_samples_give_equal_files(tmp_path: Path, result: LoadResult) -> None:
    for name in ("a.csv.gz", "b.csv.gz", "a.csv.gz"):
        write_samples(tmp_path / name, result)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv.gz", "b.csv.gz"]
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
