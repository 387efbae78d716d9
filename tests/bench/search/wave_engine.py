"""The engine of the situations for judging: a queue before a batch whose decode steps prefills interrupt.

None of its equations is that of `chunk_engine`:

    pool     = requested - weights - graphs - activations, which grow as a power of the batch
    step     = overhead + max(read, compute) + part of the smaller, where few tokens compute at part of the speed
    stolen   = share of time that prefill adds to decode steps; decoding slows down by 1 / (1 - stolen)
    rate     = where requests under way (rate x time of each, Little) are as many as there are clients, or as offered
    queue    = what batch and pool do not admit waits; chunks wait for each other as in M/G/1
    prefix   = whole blocks, found with room^2 / (room^2 + footprint^2)
    drafts   = each further guess is right less often than the one before
    cliff    = a logistic function of how full the pool is
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from optimizer.core.engine_config import FlagValue
from optimizer.core.failure import FailureKind, MemoryPhase
from optimizer.core.trial import Stage
from tests.bench.search.account import Footprint
from tests.bench.search.launch import Launch, read_launch
from tests.bench.search.situation import Crash, Truth

KIB_PER_GIB = 2.0**20
_OVERLAP = 0.3
"""Part of the smaller of read and compute that does not hide behind the larger."""
_HALVINGS = 25
_MOST_STOLEN = 0.93
RUNTIME_GIB = 0.7


@dataclass(frozen=True, slots=True)
class Host:
    """Devices and host.

    Attributes:
        memory_gib: Of one device.
        devices: How many there are.
        read_gib_s: Of one device.
        tflops: Of one device.
        saturating_tokens: At so many tokens a step computes at 63 % of its speed.
        base_ms: Scheduler and sampler of a step.
        launch_ms: Kernels of a step without graphs.
        seq_us: Of each running request in a step.
        frontend_us: Of the API server for each token.
        link_us: Of all devices for each token that they share.
        fp8_read: Time to read a token of FP8 KV as a share of BF16's.
    """

    memory_gib: float
    devices: int
    read_gib_s: float
    tflops: float
    saturating_tokens: float
    base_ms: float
    launch_ms: float
    seq_us: float
    frontend_us: float
    link_us: float = 0.0
    fp8_read: float = 0.7


@dataclass(frozen=True, slots=True)
class Net:
    """A model.

    Attributes:
        weights_gib: All of them.
        parameters_b: Billions that a token goes through.
        kv_kib: KV of a token.
        context_tokens: Longest request.
        quadratic: Arithmetic of attention over 1,024 tokens as a share of the linear layers'.
        batch_gib: Activations of 1,024 tokens.
        graph_gib: All captured sizes up to 256 tokens.
        drafter_gib: Of the draft model.
    """

    weights_gib: float
    parameters_b: float
    kv_kib: float
    context_tokens: int
    quadratic: float
    batch_gib: float
    graph_gib: float
    drafter_gib: float


@dataclass(frozen=True, slots=True)
class Load:
    """Requests: `clients` in a closed loop, or `rate_per_s` that come by themselves; lengths in tokens.

    Attributes:
        long_prompt, long_output: Their P99 as a multiple of the mean.
        shared: Beginning that a group shares.
        groups: Beginnings that there are.
        first_hit: Drafter to the chance that its first guess is right.
        fading: Share of that chance which a guess keeps of the one before it.
    """

    clients: int | None
    rate_per_s: float | None
    prompt: float
    long_prompt: float
    output: float
    long_output: float
    shared: float
    groups: int
    first_hit: Mapping[str, float]
    fading: float


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch of so many running requests: milliseconds of a step alone and with a chunk, chunks of a prompt."""

    running: float
    alone_ms: float
    mixed_ms: float
    chunks: float
    gained: float


@dataclass(frozen=True, slots=True)
class _Flow:
    """The steady state: requests per second, the batch, share of time stolen, and the length of the queue."""

    rate_per_s: float
    batch: _Batch
    stolen: float
    waiting: float


@dataclass(frozen=True, slots=True)
class WaveEngine:
    """See the module."""

    host: Host
    net: Net
    load: Load

    def truth(self, flags: Mapping[str, FlagValue]) -> Truth:
        """The noise-free answer."""
        launch = self._launch(flags)
        memory = self._footprint(launch)
        crash = self._crash(launch, memory)
        if crash is not None:
            return Truth(crash=crash)
        return Truth(self._served(launch, memory))

    def footprint(self, flags: Mapping[str, FlagValue]) -> Footprint:
        """What a launch takes on each device."""
        return self._footprint(self._launch(flags))

    def _launch(self, flags: Mapping[str, FlagValue]) -> Launch:
        return read_launch(flags, context_tokens=self.net.context_tokens, batched_tokens=2048)

    def _footprint(self, launch: Launch) -> Footprint:
        net, ways = self.net, launch.tensor_parallel
        offloaded = min(launch.cpu_offload_gb, 0.6 * net.weights_gib)
        drafter = net.drafter_gib if launch.drafter == "eagle" else 0.0
        activations = net.batch_gib * (launch.max_num_batched_tokens / 1024.0) ** 0.88
        sampler = 0.0011 * launch.max_num_seqs * (1.0 + 0.5 * launch.draft_tokens)
        return Footprint(
            requested=launch.gpu_memory_utilization * self.host.memory_gib,
            weights=(net.weights_gib - offloaded) / ways + drafter,
            rest=RUNTIME_GIB + activations / math.sqrt(ways) + sampler + self._graphs_gib(launch),
            kv_per_token=net.kv_kib * (0.5 if launch.fp8_kv else 1.0) / ways / KIB_PER_GIB,
            context_tokens=math.ceil(launch.max_model_len / launch.block_size) * launch.block_size,
            block_tokens=launch.block_size,
        )

    def _graphs_gib(self, launch: Launch) -> float:
        if launch.cudagraph_mode == "NONE":
            return 0.0
        both = 1.7 if launch.cudagraph_mode == "FULL_AND_PIECEWISE" else 1.0
        return both * self.net.graph_gib * (0.3 + 0.7 * (launch.capture_size / 256.0) ** 0.8)

    def _crash(self, launch: Launch, memory: Footprint) -> Crash | None:
        if launch.attention_backend == "FLASHINFER" and launch.block_size > 64:
            detail = "the kernel knows no blocks of that size"
            return Crash(FailureKind.ENGINE_CRASH, Stage.LAUNCHING, None, detail)
        if memory.pool < 0.0:
            lacking = math.log((memory.weights + memory.rest) / memory.requested) + 0.3
            return Crash(
                FailureKind.OUT_OF_MEMORY, Stage.LAUNCHING, lacking, "no memory is left for KV", MemoryPhase.PROFILING
            )
        if memory.pool_tokens < memory.context_tokens:
            lacking = min(math.log(memory.context / max(memory.pool, 1e-3)), 3.0)
            return Crash(FailureKind.KV_CACHE_TOO_SMALL, Stage.LAUNCHING, max(lacking, 0.005), "below one context")
        # What fragments and what libraries take under load lies outside of what the engine claimed.
        reserve = 0.993 * self.host.memory_gib - memory.requested - 0.3
        under_load = 0.12 * self.net.batch_gib * (launch.max_num_batched_tokens / 1024.0) + 0.0009 * launch.max_num_seqs
        if launch.drafter == "eagle":
            under_load *= 1.3
        if under_load > reserve:
            lacking = math.log((memory.requested + under_load) / (memory.requested + max(reserve, -0.3)))
            return Crash(
                FailureKind.OUT_OF_MEMORY, Stage.MEASURING, max(4.0 * lacking, 0.01), "no memory", MemoryPhase.SERVING
            )
        return None

    def _served(self, launch: Launch, memory: Footprint) -> dict[str, float]:
        load = self.load
        cached = load.shared if launch.prefix_caching else 0.0
        own = load.prompt - cached + 0.5 * load.output + 0.5 * launch.block_size
        most = min(float(launch.max_num_seqs), max(1.05 * memory.pool_tokens / own, 1.0))
        flow = self._flow(launch, memory, most, own)
        hit = self._hit(launch, memory, flow.batch.running * own)
        fill = flow.batch.running * own / memory.pool_tokens
        thrashing = 1.0 / (1.0 + math.exp(-(fill - 0.99) / 0.025))
        return self._metrics(launch, memory, flow, hit, min(fill, 1.0), thrashing)

    def _hit(self, launch: Launch, memory: Footprint, used: float) -> float:
        """Tokens of a prompt that are found in the cache."""
        load = self.load
        if not launch.prefix_caching or load.shared <= 0.0:
            return 0.0
        aligned = math.floor(load.shared / launch.block_size) * launch.block_size
        room = max(memory.pool_tokens - used, 0.0)
        footprint = 0.6 * load.groups * load.shared
        return 0.97 * aligned * room**2 / (room**2 + footprint**2)

    def _flow(self, launch: Launch, memory: Footprint, most: float, own: float) -> _Flow:
        """As many as there are clients, or as the rate needs: by halving, since more of them take longer."""
        load = self.load
        if load.clients is not None:
            flow = self._at(launch, memory, min(most, float(load.clients)), own)
            return replace(flow, waiting=max(load.clients - flow.batch.running, 0.0))
        offered = load.rate_per_s or 0.0
        flow = self._at(launch, memory, most, own)
        if flow.rate_per_s <= offered:
            return replace(flow, waiting=40.0 * offered)
        low, high = 0.0, most
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            flow = self._at(launch, memory, max(middle, 0.1), own)
            low, high = (low, middle) if flow.rate_per_s >= offered else (middle, high)
        return flow

    def _at(self, launch: Launch, memory: Footprint, running: float, own: float) -> _Flow:
        """The rate at which so many requests run."""
        load = self.load
        hit = self._hit(launch, memory, running * own)
        batch = self._batch(launch, running, load.prompt - hit)
        extra_ms = batch.chunks * (batch.mixed_ms - batch.alone_ms)
        steps = load.output / batch.gained
        fill = running * own / memory.pool_tokens
        again = 1.0 + 0.8 / (1.0 + math.exp(-(fill - 0.99) / 0.025))
        # Each request holds its place for its own prefill and for steps that others' prefills lengthen.
        busy_ms = steps * batch.alone_ms + again * (batch.chunks * batch.mixed_ms + running * extra_ms)
        rate = 1e3 * running / busy_ms
        # All tokens pass through the renderers.
        through = 1e6 * launch.renderer_num_workers / (self.host.frontend_us * load.output)
        rate = rate / (1.0 + (rate / through) ** 3) ** (1.0 / 3.0)
        return _Flow(rate, batch, min(rate * again * extra_ms / 1e3, _MOST_STOLEN), 0.0)

    def _batch(self, launch: Launch, running: float, prefill: float) -> _Batch:
        verified = running * (1.0 + launch.draft_tokens)
        room = max(launch.max_num_batched_tokens - verified, 32.0)
        chunk = min(prefill, room)
        if launch.long_prefill_token_threshold > 0:
            chunk = min(chunk, float(launch.long_prefill_token_threshold))
        if not launch.chunked_prefill:
            chunk = prefill
        return _Batch(
            running=running,
            alone_ms=self._step_ms(launch, running, verified, 0.0),
            mixed_ms=self._step_ms(launch, running, verified, chunk),
            chunks=max(prefill / chunk, 1.0),
            gained=self._gained(launch),
        )

    def _gained(self, launch: Launch) -> float:
        """Tokens that a step yields of a request."""
        chance = self.load.first_hit.get(launch.drafter, 0.0)
        gained, all_right = 1.0, 1.0
        for _ in range(launch.draft_tokens):
            all_right *= chance
            gained += all_right
            chance *= self.load.fading
        return gained

    def _step_ms(self, launch: Launch, running: float, verified: float, chunk: float) -> float:
        host, net, load, ways = self.host, self.net, self.load, launch.tensor_parallel
        context = load.prompt + 0.5 * load.output
        decode_read, prefill_speed, metadata_ms = {
            "FLASHINFER": (0.82, 0.95, 0.9),
            "TRITON_ATTN": (1.1, 0.85, 0.2),
        }.get(launch.attention_backend, (1.0, 1.0, 0.3))
        kv_kib = net.kv_kib * (host.fp8_read if launch.fp8_kv else 1.0)
        paged = 1.0 + 0.25 / math.sqrt(launch.block_size)
        offloaded = min(launch.cpu_offload_gb, 0.6 * net.weights_gib)
        kv_gib = (running + (0.7 if chunk > 0.0 else 0.0)) * context * kv_kib / KIB_PER_GIB * paged * decode_read
        read_ms = 1e3 * ((net.weights_gib - offloaded + kv_gib) / (host.read_gib_s * ways) + offloaded / 14.0)
        tokens = verified + chunk * (1.0 + net.quadratic * 0.5 * context / 1024.0 / prefill_speed)
        speed = 1.0 - math.exp(-(verified + chunk + 1.0) / host.saturating_tokens)
        compute_ms = 2.0 * net.parameters_b * tokens / (host.tflops * ways) / speed
        compute_ms += host.link_us * (verified + chunk) / 1e3 * (ways - 1)
        work_ms = max(read_ms, compute_ms) + _OVERLAP * min(read_ms, compute_ms)
        return self._overhead_ms(launch, running, verified + chunk) + metadata_ms + work_ms

    def _overhead_ms(self, launch: Launch, running: float, tokens: float) -> float:
        host = self.host
        covered = 0.0
        if launch.cudagraph_mode != "NONE":
            z = (launch.capture_size - tokens) / (0.2 * tokens)
            covered = 0.5 * math.erfc(-z / math.sqrt(2.0))
            covered *= 0.75 if launch.cudagraph_mode == "PIECEWISE" else 1.0
        # Each API server takes a core from the engine.
        host_ms = (host.base_ms + host.seq_us * running / 1e3) * (1.0 + 0.07 * (launch.renderer_num_workers - 1))
        if launch.async_scheduling:
            host_ms *= 0.5 if launch.drafter == "none" else 0.95
        if launch.prefix_caching:
            host_ms += 0.0015 * running * 16.0 / launch.block_size
        drafting_ms = 0.0
        if launch.drafter == "ngram":
            drafting_ms = 0.012 * running * (1.0 + 0.2 * launch.draft_tokens)
        elif launch.drafter == "eagle":
            read_ms = 1e3 * self.net.drafter_gib / host.read_gib_s
            drafting_ms = launch.draft_tokens * (0.25 + read_ms * (1.0 + running / 120.0))
        return host_ms + host.launch_ms * (1.0 - covered) + drafting_ms + 0.4 * (launch.tensor_parallel - 1)

    def _metrics(
        self, launch: Launch, memory: Footprint, flow: _Flow, hit: float, fill: float, thrashing: float
    ) -> dict[str, float]:
        load, batch = self.load, flow.batch
        rate, stolen = flow.rate_per_s, flow.stolen
        idle = 1.0 - stolen
        queue_ms = 1e3 * flow.waiting / rate
        own_ms = batch.chunks * batch.mixed_ms + (batch.alone_ms if launch.async_scheduling else 0.0)
        behind_ms = 0.5 * own_ms * stolen / idle
        tpot_ms = batch.alone_ms / batch.gained * (1.0 + stolen / idle * min(1.0, 4.0 / batch.chunks + 0.4))
        tail = 1.0 + 0.55 * math.sqrt(stolen / idle) * (batch.mixed_ms / batch.alone_ms - 1.0) ** 0.25
        often = 1.0 - math.exp(-70.0 * min(rate * batch.chunks * batch.mixed_ms / 1e3, 1.0) * stolen)
        e2e_ms = queue_ms + own_ms + behind_ms + load.output * tpot_ms
        longest = load.prompt * load.long_prompt + load.output * load.long_output
        error = 0.02 * max(longest / launch.max_model_len - 0.75, 0.0) ** 2 * 8.0
        return {
            "output_tokens_per_s": rate * load.output,
            "total_tokens_per_s": rate * (load.output + load.prompt),
            "requests_per_s": rate,
            "mean_ttft_ms": queue_ms + own_ms + behind_ms,
            "mean_tpot_ms": tpot_ms,
            "mean_e2e_ms": e2e_ms,
            "p99_ttft_ms": 1.25 * queue_ms + own_ms * (0.4 + 0.6 * load.long_prompt) + 4.6 * behind_ms,
            "p99_tpot_ms": tpot_ms * (1.05 * tail + 0.2 * math.log(batch.gained) + 1.4 * thrashing),
            "p99_itl_ms": 1.1 * (batch.alone_ms + often * (batch.mixed_ms - batch.alone_ms)) * (1.0 + thrashing),
            "p99_e2e_ms": 1.2 * queue_ms + own_ms * load.long_prompt
            + load.output * load.long_output * 0.85 * tpot_ms * (1.0 + 1.2 * thrashing),
            "error_rate": min(error, 1.0),
            "running_mean": batch.running,
            "waiting_mean": flow.waiting,
            "preemptions": 20.0 * thrashing * rate,
            "prefix_cache_hit_rate": hit / load.prompt,
            "kv_cache_usage_mean": fill,
            "kv_cache_tokens": float(memory.pool_tokens),
            "spec_acceptance_rate": (batch.gained - 1.0) / max(launch.draft_tokens, 1),
            "requests_counted": max(rate * 60.0, 200.0),
            "window_s": 60.0,
        }  # fmt: skip
