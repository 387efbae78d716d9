"""What one load run on one live engine yielded: request times, engine counters, host use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from optimizer.core.client_health import ClientHealth
from optimizer.core.stop_reason import StopReason

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

UNFINISHED = "unfinished"
"""Error of a request that had not ended when the run did, or when the look was taken."""


def _no_floats() -> FloatArray:
    return np.zeros(0)


def _no_ints() -> IntArray:
    return np.zeros(0, dtype=np.int64)


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
        ready_s: When each request could leave: scheduled, and a slot free below the cap on requests in flight. Shape
            (n,), or (0,) where it was not kept; so are the next two.
        sessions: Number of the conversation it belongs to, -1 for none; -2 - number where it began before the window.
        turns: Its place in the conversation, from 0.
        gaps_at: Where the gaps of each successful request begin in `itl_s`; it has one less than tokens. Shape (n,), or
            (0,) where requests follow each other there as they do here.
        tokens_per_s_bins: Tokens that arrived in each whole second of the window.
        in_flight_per_s: Requests that were due and had not ended at the end of each whole second of the window. Those
            that wait at a cap on requests in flight are among them: more than is served makes their queue grow.
        too_long: Counted requests that were never sent, since they are longer than the engine takes.
        now_s: When the look was taken; while the load runs, requests under way have the error `UNFINISHED`.
        stopped_by: Why the window closed; None while it is open.
        warm_up_s: How long load ran before the window opened.
        level: Whether throughput was level when it opened; False when the warm-up ran out of time.
        client: How the load generator kept up; None while the window is open.
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
    ready_s: FloatArray = field(default_factory=_no_floats)
    sessions: IntArray = field(default_factory=_no_ints)
    turns: IntArray = field(default_factory=_no_ints)
    gaps_at: IntArray = field(default_factory=_no_ints)
    tokens_per_s_bins: IntArray = field(default_factory=_no_ints)
    in_flight_per_s: IntArray = field(default_factory=_no_ints)
    too_long: int = 0
    now_s: float = float("nan")
    stopped_by: StopReason | None = None
    warm_up_s: float = float("nan")
    level: bool = True
    client: ClientHealth | None = None

    @property
    def under_way(self) -> npt.NDArray[np.bool_]:
        """Which requests have not ended, shape (n,)."""
        return np.array([error == UNFINISHED for error in self.errors], dtype=np.bool_)

    @property
    def pending(self) -> npt.NDArray[np.bool_]:
        """Which counted requests may still end well, shape (n,).

        While the load runs, or after it was ended there and then, requests under way have not failed; after a drain
        they have.
        """
        broken_off = self.stopped_by is not None and self.stopped_by.ends_at_once
        looked_at = self.stopped_by is None and not math.isnan(self.now_s)
        if broken_off or looked_at:
            return self.under_way
        return np.zeros(len(self.errors), dtype=np.bool_)

    @property
    def queue_s(self) -> FloatArray:
        """How long each request that left waited in the client, from its scheduled start; part of its latency."""
        waited_s: FloatArray = (self.sent_s - self.scheduled_s)[~np.isnan(self.sent_s)]
        return waited_s

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
    kv_cache_tokens_predicted: float | None = None
    """The same, as it was predicted before the launch."""
    requested_memory_bytes: float | None = None
    """Memory of one device that the engine took as its own, weights and all."""
    model_weights_bytes: float | None = None
    """Weights that it loaded on one device."""
    engine_ttft_mean_ms: float | None = None
    """Time to first token as the engine sees it: without the client's way to it and back."""
    engine_itl_mean_ms: float | None = None
    """Time between two steps that gave a request tokens, as the engine core stamps them."""
    engine_queue_mean_ms: float | None = None
    """Time that a request waited in the engine before it was first scheduled."""
    waiting_capacity_mean: float | None = None
    """Of the waiting: those that the scheduler had no room for (vLLM's reason `capacity`)."""
    waiting_deferred_mean: float | None = None
    """Of the waiting: those that wait for something else, such as a grammar (reason `deferred`)."""
    kv_block_tokens: float | None = None
    """Tokens of one KV block."""
    notes: tuple[str, ...] = ()
    """What could not be read, and why."""


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """One thread over the window.

    Attributes:
        process: The process's title, such as `VLLM::EngineCore`.
        pid: Its number.
        thread: `main`, or the name the thread has.
        cores: CPU seconds per second; a thread cannot use more than 1.
        waiting: Seconds per second that it could have run but had no core; None where the kernel does not tell.
    """

    process: str
    pid: int
    thread: str
    cores: float
    waiting: float | None = None


@dataclass(frozen=True, slots=True)
class RoleUse:
    """All processes of one role over the window.

    Attributes:
        role: `api_server`, `engine_core`, `worker`, `client` or `other`.
        processes: How many there were.
        cores: CPU seconds per second of all their threads.
        busiest: The thread that used most.
    """

    role: str
    processes: int
    cores: float
    busiest: ThreadUse


@dataclass(frozen=True, slots=True)
class HostUsage:
    """CPU and memory over the window. Seconds of CPU per second: 1.0 is one core fully used."""

    engine_cpu_cores: float | None = None
    client_cpu_cores: float | None = None
    engine_rss_bytes: float | None = None
    client_lag_p99_ms: float | None = None
    """How late the client's own event loop was; client-side times are no better than this."""
    roles: tuple[RoleUse, ...] = ()
    """CPU by role, threads apart; empty where threads were not watched."""
    engine_cpus: float | None = None
    """Cores that the engine's processes may run on."""
    cpu_energy_j: float | None = None
    """Energy of the host's CPU packages; None where the kernel does not let it be read."""


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """The engine's GPUs over the window. None where there is no GPU, or the driver does not report the figure.

    Shares and clocks are means over samples and cards, power, energy and memory are sums over the cards.
    """

    gpu_util_mean: float | None = None
    """Share of the time in which any kernel ran: 1 does not mean that the card can do no more."""
    gpu_mem_util_mean: float | None = None
    """Share of the time in which its memory was read or written."""
    gpu_power_w_mean: float | None = None
    gpu_energy_j: float | None = None
    gpu_memory_used_max_bytes: float | None = None
    gpu_sm_clock_mhz_mean: float | None = None
    gpu_throttled_share: float | None = None
    """Share of the samples in which power, heat or the board's supply held the clocks down."""
    throttle_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """All of one load run on one engine."""

    load: LoadResult
    engine: EngineMetrics
    host: HostUsage
    gpu: GpuUsage = GpuUsage()
