"""`workloads`: the traffic that comes with the package, and what one workload (or workload file) sends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import JsonValue

from optimizer.config import built_in_workloads, load_workload
from optimizer.load import Workload
from optimizer.load.datasets.index import IntArray
from optimizer.load.hit_rate import expected_prefix_hit_rate
from optimizer.load.shapes import request_shapes

HIT_RATE_BLOCK_TOKENS = 16
"""vLLM's default block on GPUs."""
SAMPLES = 3


@dataclass(frozen=True, slots=True)
class WorkloadLine:
    """A workload in a list."""

    name: str
    description: str
    arrivals: str
    requests: str


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths in tokens; all but `longest`, which is the hard end, are those of the first requests under seed 0."""

    mean: float
    p50: int
    p99: int
    longest: int


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """What a workload sends.

    Attributes:
        line: As in a list.
        prompt: Whole prompts, with shared prefix and repeated turns.
        output: Answers.
        request: Both together.
        hit_rate: Share of the prompt tokens that a warm prefix cache of blocks of 16 tokens answers; None where prompts
            come from a file, whose own repetitions are not known.
        samples: Prompt and output tokens of the first requests under seed 0.
        rows: Requests in its file; None without one.
        left_out: Conversations of its file that cannot be asked.
        guessed: Whether some lengths are guesses, since only a tokenizer can tell them.
        data: The whole workload as plain JSON.
    """

    line: WorkloadLine
    prompt: Lengths
    output: Lengths
    request: Lengths
    hit_rate: float | None
    samples: tuple[tuple[int, int], ...]
    rows: int | None
    left_out: int
    guessed: bool
    data: dict[str, JsonValue]


def list_workloads() -> list[WorkloadLine]:
    """The built-in workloads, by name."""
    return [_line(workload) for workload in built_in_workloads()]


def read_workload(name_or_path: str) -> WorkloadSummary:
    """A built-in workload or a workload file.

    Raises:
        InputError: There is no such workload, or its file or a row of its requests is wrong.
    """
    workload = load_workload(name_or_path)
    shapes = request_shapes(workload)
    index = workload.dataset
    prompt, output = shapes.prompt_tokens, shapes.output_tokens
    return WorkloadSummary(
        line=_line(workload),
        prompt=_lengths(prompt, workload.longest_prompt_tokens),
        output=_lengths(output, workload.longest_answer_tokens),
        request=_lengths(prompt + output, workload.longest_request_tokens),
        hit_rate=expected_prefix_hit_rate(workload, HIT_RATE_BLOCK_TOKENS),
        samples=tuple(zip(prompt[:SAMPLES].tolist(), output[:SAMPLES].tolist(), strict=True)),
        rows=None if index is None else len(index),
        left_out=0 if index is None else index.left_out,
        guessed=index is not None and index.has_text,
        data=workload.model_dump(mode="json"),
    )


def _line(workload: Workload) -> WorkloadLine:
    sharing = workload.shared_prefix
    shared = "" if sharing is None else f"{sharing.words}, then "
    return WorkloadLine(workload.name, workload.description, workload.arrivals.words, shared + workload.request_words)


def _lengths(tokens: IntArray, longest: int) -> Lengths:
    p50, p99 = np.percentile(tokens, [50, 99], method="higher")
    return Lengths(float(np.mean(tokens)), int(p50), int(p99), longest)
