"""The prefix cache's hit rate that a workload implies, to compare with what an engine reports."""

from __future__ import annotations

import numpy as np

from optimizer.load.shapes import USUAL_COUNT, request_shapes
from optimizer.load.workload import Workload


def expected_prefix_hit_rate(
    workload: Workload, block_size: int, *, study_seed: int = 0, count: int = USUAL_COUNT
) -> float | None:
    """Share of the prompt tokens, 0 to 1, that a warm cache with room for all of it answers, as vLLM counts it.

    vLLM keeps whole blocks of computed tokens, and computes at least the last token of a prompt: a request that has
    seen s of its n prompt tokens hits floor(min(s, n - 1) / block) blocks. A lower rate that is measured means
    evictions or a cold cache; a higher one means that runs feed each other.

    Args:
        workload: What is sent.
        block_size: Tokens of one KV block.
        study_seed: >= 0; whose lengths are taken.
        count: Over so many requests (with sessions, conversations) from the first on.

    Returns:
        None where prompts come from a file, whose own repetitions are not known.

    Raises:
        InputError: The workload's file is wrong.
    """
    index = workload.dataset
    if index is not None and (index.has_text or index.highest_token_id >= 0):
        return None
    shapes = request_shapes(workload, study_seed, count)
    hits = np.minimum(shapes.seen_tokens, shapes.prompt_tokens - 1) // block_size * block_size
    return float(hits.sum() / shapes.prompt_tokens.sum())
