"""What the rules need to know of a workload: its lengths as numbers, and how many requests are under way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from optimizer.load import Workload
from optimizer.load.shapes import request_shapes


@dataclass(frozen=True, slots=True)
class Traffic:
    """A workload in numbers. All lengths are tokens.

    Attributes:
        in_flight: Requests under way at a time, at the most; None when they come as they come, without a cap.
        prefixes: How many shared beginnings there are; 0 when requests share nothing.
        shared_prefix_tokens: Length of each, or 0.
        median_prompt_tokens: Of a prompt's own part, after the shared beginning and the turns that it repeats.
        mean_prompt_tokens: The same, as a mean.
        mean_output_tokens: Of an answer.
        p99_request_tokens: 99th percentile of prompt (shared part included) and answer together.
        longest_request_tokens: No request is longer.
    """

    in_flight: int | None
    prefixes: int
    shared_prefix_tokens: int
    median_prompt_tokens: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    p99_request_tokens: int
    longest_request_tokens: int

    def computed_prompt_tokens(self, own_tokens: float, block_tokens: int | None) -> float:
        """Tokens of a prompt that are computed although others with the same beginning came before.

        Args:
            own_tokens: Length of the prompt after the shared beginning.
            block_tokens: Tokens of one KV block; None when prefixes are not kept.
        """
        if block_tokens is None:
            return self.shared_prefix_tokens + own_tokens
        return self.shared_prefix_tokens % block_tokens + own_tokens


@lru_cache(maxsize=16)
def traffic_of(workload: Workload) -> Traffic:
    """The workload in numbers; percentiles are those of its first requests under seed 0."""
    shapes = request_shapes(workload)
    sharing = workload.shared_prefix
    p99 = float(np.percentile(shapes.prompt_tokens + shapes.output_tokens, 99, method="higher"))
    return Traffic(
        in_flight=workload.arrivals.most_in_flight,
        prefixes=0 if sharing is None else sharing.prefixes,
        shared_prefix_tokens=0 if sharing is None else sharing.tokens,
        median_prompt_tokens=float(np.median(shapes.own_tokens)),
        mean_prompt_tokens=float(np.mean(shapes.own_tokens)),
        mean_output_tokens=float(np.mean(shapes.output_tokens)),
        p99_request_tokens=min(workload.longest_request_tokens, int(p99)),
        longest_request_tokens=workload.longest_request_tokens,
    )
