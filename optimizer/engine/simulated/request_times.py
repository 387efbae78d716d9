"""The histograms of `/metrics`: when each request came, ran, gave tokens and ended.

As in vLLM, TTFT and E2E run from the request's arrival at the API server, and inter-token latency from step to step,
whatever number of tokens a step gives. All times are of one monotonic clock, which both processes share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optimizer.engine.simulated import histogram
from optimizer.engine.simulated.histogram import Histogram
from optimizer.engine.simulated.step import StepOutput


@dataclass(frozen=True, slots=True)
class StepTiming:
    """When a step ran, and what it changed besides giving tokens.

    Attributes:
        began_s: Monotonic; the queue time of the admitted ends here.
        ended_s: Monotonic.
        admitted: Requests that ran for the first time.
        preempted: Requests that lost their blocks.
    """

    began_s: float
    ended_s: float
    admitted: Sequence[str]
    preempted: Sequence[str]


@dataclass(slots=True)
class _Request:
    """A live request, as far as it has come."""

    arrived_s: float
    prompt_tokens: int
    scheduled_s: float = 0.0
    first_token_s: float | None = None
    last_token_s: float = 0.0
    output_tokens: int = 0
    preemptions: int = 0


class RequestTimes:
    """Fills the histograms; `histograms` holds them under vLLM's names without the prefix.

    Args:
        max_model_len: Where the buckets of token counts end.
    """

    def __init__(self, max_model_len: int) -> None:
        tokens = histogram.request_tokens(max_model_len)
        edges = {
            "time_to_first_token_seconds": histogram.TIME_TO_FIRST_TOKEN_S,
            "inter_token_latency_seconds": histogram.INTER_TOKEN_LATENCY_S,
            "request_time_per_output_token_seconds": histogram.INTER_TOKEN_LATENCY_S,
            "e2e_request_latency_seconds": histogram.REQUEST_LATENCY_S,
            "request_queue_time_seconds": histogram.REQUEST_LATENCY_S,
            "request_inference_time_seconds": histogram.REQUEST_LATENCY_S,
            "request_prefill_time_seconds": histogram.REQUEST_LATENCY_S,
            "request_decode_time_seconds": histogram.REQUEST_LATENCY_S,
            "iteration_tokens_total": histogram.ITERATION_TOKENS,
            "request_num_preemptions": histogram.REQUEST_PREEMPTIONS,
            "request_prompt_tokens": tokens,
            "request_generation_tokens": tokens,
            "request_prefill_kv_computed_tokens": tokens,
        }
        self.histograms = {name: Histogram(of) for name, of in edges.items()}
        self._live: dict[str, _Request] = {}

    def arrived(self, request_id: str, prompt_tokens: int, now_s: float) -> None:
        """A request has come."""
        self._live[request_id] = _Request(now_s, prompt_tokens)

    def gone(self, request_id: str) -> None:
        """A request is over; one that was aborted leaves no latency."""
        self._live.pop(request_id, None)

    def step(self, timing: StepTiming, outputs: Iterable[StepOutput]) -> None:
        """A step has ended."""
        for request_id in timing.preempted:
            if request_id in self._live:
                self._live[request_id].preemptions += 1
        for request_id in timing.admitted:
            if request_id in self._live:
                self._live[request_id].scheduled_s = timing.began_s
        tokens = sum(self._output(output, timing.ended_s) for output in outputs)
        self._observe("iteration_tokens_total", tokens)

    def _output(self, output: StepOutput, now_s: float) -> int:
        """Takes one request's tokens; how many the step computed for it, its prompt counted when that is done."""
        request = self._live.get(output.request_id)
        if request is None:
            return len(output.token_ids)
        computed = len(output.token_ids)
        if request.first_token_s is None:
            request.first_token_s = now_s
            computed += request.prompt_tokens - output.cached_tokens
            self._observe("time_to_first_token_seconds", now_s - request.arrived_s)
        else:
            self._observe("inter_token_latency_seconds", now_s - request.last_token_s)
        request.last_token_s = now_s
        request.output_tokens += len(output.token_ids)
        if output.finished:
            self._finished(request, output.cached_tokens, request.first_token_s)
        return computed

    def _finished(self, request: _Request, cached_tokens: int, first_token_s: float) -> None:
        decode_s = request.last_token_s - first_token_s
        self._observe("e2e_request_latency_seconds", request.last_token_s - request.arrived_s)
        self._observe("request_queue_time_seconds", request.scheduled_s - request.arrived_s)
        self._observe("request_inference_time_seconds", request.last_token_s - request.scheduled_s)
        self._observe("request_prefill_time_seconds", first_token_s - request.scheduled_s)
        self._observe("request_decode_time_seconds", decode_s)
        self._observe("request_time_per_output_token_seconds", decode_s / max(1, request.output_tokens - 1))
        self._observe("request_num_preemptions", request.preemptions)
        self._observe("request_prompt_tokens", request.prompt_tokens)
        self._observe("request_generation_tokens", request.output_tokens)
        self._observe("request_prefill_kv_computed_tokens", request.prompt_tokens - cached_tokens)

    def _observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)
