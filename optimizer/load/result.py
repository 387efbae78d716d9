"""From traces of single requests to the arrays of a `LoadResult`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optimizer.core.measurement import LoadResult
from optimizer.load.completion import RequestTrace

_NEVER = float("nan")


def to_load_result(traces: Sequence[RequestTrace], start_s: float, end_s: float) -> LoadResult:
    """Counts the requests scheduled in [start_s, end_s), and the tokens of all requests that arrived therein.

    Of a request that was cancelled before the engine told its tokens (no usage on the chunks) none are counted.
    """
    counted = [trace for trace in traces if start_s <= trace.scheduled_s < end_s]
    succeeded = [trace for trace in counted if trace.error is None]
    return LoadResult(
        window_start_s=start_s,
        window_s=end_s - start_s,
        scheduled_s=np.array([trace.scheduled_s for trace in counted], dtype=np.float64),
        sent_s=np.array([_NEVER if trace.sent_s is None else trace.sent_s for trace in counted], dtype=np.float64),
        first_token_s=np.array([_arrival(trace, 0) for trace in counted], dtype=np.float64),
        last_token_s=np.array([_arrival(trace, -1) for trace in counted], dtype=np.float64),
        prompt_tokens=np.array([trace.prompt_tokens for trace in counted], dtype=np.int64),
        output_tokens=np.array([trace.output_tokens for trace in counted], dtype=np.int64),
        errors=tuple(trace.error for trace in counted),
        itl_s=np.array([gap for trace in succeeded for gap in trace.gaps_s], dtype=np.float64),
        window_output_tokens=sum(tokens for trace in traces for at, tokens in trace.arrivals if start_s <= at < end_s),
        window_requests=sum(
            trace.error is None and trace.ended_s is not None and start_s <= trace.ended_s < end_s for trace in traces
        ),
    )


def _arrival(trace: RequestTrace, which: int) -> float:
    return trace.arrivals[which][0] if trace.arrivals else _NEVER
