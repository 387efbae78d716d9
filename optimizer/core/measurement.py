"""What one load run on one live engine yielded: request times, engine counters, host use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LoadResult:
    """The requests scheduled inside the measuring window, one array element each, and the window itself.

    All times are seconds on one monotonic clock; NaN where the event never came. Latency counts from `scheduled_s`.

    Attributes:
        window_start_s: Start of the window.
        window_s: Length of the window; throughput is what arrived inside it.
        scheduled_s: When each request should have left, shape (n,).
        sent_s: When it left, shape (n,).
        first_token_s: When its first token came, shape (n,).
        last_token_s: When its last token came, shape (n,).
        prompt_tokens: Tokens of its prompt, shape (n,).
        output_tokens: Tokens it got, shape (n,).
        errors: Why it failed, or None; length n. A short answer is a failure.
        itl_s: Gaps between the tokens of the successful requests, all in one array, shape (m,).
        window_output_tokens: Tokens that arrived inside the window, whichever request they belong to.
        window_requests: Requests that ended successfully inside the window.
    """

    window_start_s: float
    window_s: float
    scheduled_s: FloatArray
    sent_s: FloatArray
    first_token_s: FloatArray
    last_token_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    errors: tuple[str | None, ...]
    itl_s: FloatArray
    window_output_tokens: int
    window_requests: int

    @property
    def ok(self) -> npt.NDArray[np.bool_]:
        """Which requests succeeded, shape (n,)."""
        return np.array([error is None for error in self.errors], dtype=np.bool_)

    @property
    def ttft_s(self) -> FloatArray:
        """Time to first token of the successful requests, from the scheduled start."""
        return (self.first_token_s - self.scheduled_s)[self.ok]

    @property
    def e2e_s(self) -> FloatArray:
        """End-to-end latency of the successful requests, from the scheduled start to the last token."""
        return (self.last_token_s - self.scheduled_s)[self.ok]

    @property
    def tpot_s(self) -> FloatArray:
        """Mean time per output token after the first, of the successful requests with at least two tokens."""
        many = self.ok & (self.output_tokens > 1)
        return ((self.last_token_s - self.first_token_s)[many]) / (self.output_tokens[many] - 1)


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """What the engine said of itself over the window. None where it does not report the figure.

    Counters are differences over the window; gauges are the mean and the largest of the samples (1 Hz or better).
    """

    preemptions: float | None = None
    prefix_cache_hit_rate: float | None = None
    spec_acceptance_rate: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    kv_cache_usage_mean: float | None = None
    kv_cache_usage_max: float | None = None
    running_mean: float | None = None
    running_max: float | None = None
    waiting_mean: float | None = None
    waiting_max: float | None = None
    kv_cache_tokens: float | None = None
    """KV pool size the engine reported, in tokens."""
    notes: tuple[str, ...] = ()
    """What could not be read, and why."""


@dataclass(frozen=True, slots=True)
class HostUsage:
    """CPU and memory over the window. Seconds of CPU per second: 1.0 is one core fully used."""

    engine_cpu_cores: float | None = None
    client_cpu_cores: float | None = None
    engine_rss_bytes: float | None = None
    client_lag_p99_ms: float | None = None
    """How late the client's own event loop was; client-side times are no better than this."""


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """All of one load run on one engine."""

    load: LoadResult
    engine: EngineMetrics
    host: HostUsage
