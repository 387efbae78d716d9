"""Logs of any length and any bytes, read within bounds."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from optimizer.core.failure import FailureKind
from optimizer.core.trial import Stage
from optimizer.engine.engine_log import HEAD_BYTES, TAIL_BYTES, LogGrowth, read_log
from optimizer.engine.vllm.failures import classify

MIB = 2**20
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.fixture
def log(tmp_path):
    return tmp_path / "engine.log"


def test_no_log_is_an_empty_one(log):
    assert read_log(log) == ""


def test_a_log_of_ordinary_length_is_read_whole_and_whatever_its_bytes(log):
    log.write_bytes(b"first\n" + b"\xff\xfe\x00" * 100_000 + b"\nlast\n")
    text = read_log(log)
    assert text.startswith("first\n")
    assert text.endswith("\nlast\n")


def test_of_a_long_log_the_beginning_and_the_end_are_read(log):
    log.write_bytes(b"first\n" + b"x" * (6 * MIB) + b"\nlast\n")
    text = read_log(log)
    assert text.startswith("first\n")
    assert text.endswith("\nlast\n")
    assert f"[{6 * MIB + 12 - HEAD_BYTES - TAIL_BYTES} bytes are left out here]" in text
    assert len(text) < HEAD_BYTES + TAIL_BYTES + 100


CHATTER = b"(APIServer pid=9) ERROR 11-29 18:50:30 [serving.py:1] ValueError: one request of max seq len (4) failed\n"


@pytest.mark.parametrize("place", ["head", "tail"])
def test_a_gigabyte_of_log_is_told_in_a_moment_and_in_bounded_memory(log, place):
    """The middle of the file is a hole, which reads as zeros and takes no time to write."""
    much = CHATTER * (5 * MIB // len(CHATTER))
    with log.open("wb") as file:
        file.write(OOM + b"\n" + much if place == "head" else much)
        file.truncate(2**30)
        file.seek(2**30)
        file.write(much + OOM + b"\n" if place == "tail" else much)
    tracemalloc.start()
    begun_s = time.process_time()
    failure = classify(read_log(log), stage=Stage.MEASURING, exit_code=0)
    took_s, peak_bytes = time.process_time() - begun_s, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert took_s < 5.0
    assert peak_bytes < 60 * MIB


def test_a_gigabyte_that_names_nothing_known_is_unknown_and_keeps_its_last_lines(log):
    with log.open("wb") as file:
        file.truncate(2**30)
        file.seek(2**30)
        file.write(b"\n" + b"\xff\xfe" * MIB + b"\nthe last word\n")
    failure = classify(read_log(log), stage=Stage.LAUNCHING, exit_code=1)
    assert failure.kind is FailureKind.UNKNOWN
    assert failure.evidence[-1] == "the last word"
    assert all(len(line) <= 400 for line in failure.evidence)


def test_what_a_waiting_engine_repeats_is_no_news(log):
    growth = LogGrowth(log)
    assert not growth.has_news()
    log.write_text("Loading weights\n")
    assert growth.has_news()
    assert not growth.has_news()
    with log.open("a") as file:
        file.write("INFO 11-29 18:50:31 [shm_broadcast.py:1] No available shared memory broadcast block found in 60\n")
        file.write("DEBUG 11-29 18:50:31 [utils.py:1] Waiting for 1 local, 0 remote core engine proc(s) to start.\n\n")
    assert not growth.has_news()
    with log.open("a") as file:
        file.write("Capturing CUDA graphs\n")
    assert growth.has_news()
    log.write_text("")
    assert not growth.has_news()
