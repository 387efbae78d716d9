"""The engine of the situations for tuning: a closed loop over steps that mix decodes with a chunk of prefill.

Equations:

    pool      = requested - weights - context - activations(batched tokens) - logits(seqs)
    running   = min(clients, seqs, what the pool admits); what is admitted but does not fit to the end is preempted
    step      = overhead + (read^4 + compute^4)^(1/4), with and without a chunk of prefill in it
    balance   = each step prefills as many tokens as the requests that end in it will need again
    prefix    = whole blocks of the shared prefix, as far as the pool has room for them beside the running requests
    drafts    = a step yields (1 - a^(k+1)) / (1 - a) tokens of a request and verifies k + 1
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from optimizer.core.engine_config import FlagValue
from optimizer.core.failure import FailureKind, MemoryPhase
from optimizer.core.trial import Stage
from tests.bench.search.account import Footprint
from tests.bench.search.launch import Launch, read_launch
from tests.bench.search.situation import Crash, Truth

KIB_PER_GIB = 2.0**20
MOST_VIOLATION = 3.0
CONTEXT_GIB = 0.45
"""What the driver and the libraries take."""


@dataclass(frozen=True, slots=True)
class Card:
    """A device: memory, what others hold of it (GiB), memory reads (GiB/s), arithmetic (TFLOP/s), times of a step.

    `fp8_read` is the time to read a token of FP8 KV, as a share of BF16's; `half_tokens` the batch that reaches half of
    the arithmetic.
    """

    memory_gib: float
    others_gib: float
    read_gib_s: float
    tflops: float
    overhead_ms: float
    eager_ms: float
    per_seq_us: float
    fp8_read: float = 0.62
    half_tokens: float = 180.0
    host_gib_s: float = 22.0


@dataclass(frozen=True, slots=True)
class Model:
    """A model: weights (GiB), parameters (billions), KV a token (KiB), and what computing takes besides.

    Attributes:
        attention_span: Context at which attention computes as much as the linear layers.
        act_gib_per_ktok: Activations of 1,024 tokens.
        logits_mib: Of one sequence.
        drafter_gib: Weights of the draft model.
        graph_mib: One captured batch size.
    """

    weights_gib: float
    parameters_b: float
    kv_kib: float
    context_tokens: int
    attention_span: float
    act_gib_per_ktok: float
    logits_mib: float
    drafter_gib: float
    graph_mib: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """A closed loop: lengths in tokens with their coefficients of variation, and what drafters hit.

    Attributes:
        shared: Tokens that the prompts of one group begin with.
        groups: How many such beginnings there are.
        hits: Drafter to the chance that its next token is right.
        rate_per_s: Arrivals of an open loop, which then takes the place of the clients.
    """

    clients: int
    prompt: float
    prompt_cv: float
    output: float
    output_cv: float
    shared: float
    groups: int
    hits: Mapping[str, float]
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """A steady state: requests that decode, tokens each gets a step, mean step, step with prefill, share of those."""

    decoding: float
    per_step: float
    mean_ms: float
    plain_ms: float
    mixed_ms: float
    mixed_share: float
    chunk: float


@dataclass(frozen=True, slots=True)
class ChunkEngine:
    """See the module."""

    card: Card
    model: Model
    traffic: Traffic

    def truth(self, flags: Mapping[str, FlagValue]) -> Truth:
        """The noise-free answer."""
        launch = self._launch(flags)
        memory = self._footprint(launch)
        crash = self._crash(launch, memory)
        if crash is not None:
            return Truth(crash=crash)
        return self._served(launch, memory)

    def footprint(self, flags: Mapping[str, FlagValue]) -> Footprint:
        """What a launch takes."""
        return self._footprint(self._launch(flags))

    def _launch(self, flags: Mapping[str, FlagValue]) -> Launch:
        return read_launch(flags, context_tokens=self.model.context_tokens, batched_tokens=2048)

    def _footprint(self, launch: Launch) -> Footprint:
        model = self.model
        ktok = launch.max_num_batched_tokens / 1024.0
        activations = model.act_gib_per_ktok * ktok * (1.0 + ktok / 48.0)
        logits = model.logits_mib * launch.max_num_seqs * (1 + launch.draft_tokens) / 1024.0
        return Footprint(
            requested=launch.gpu_memory_utilization * self.card.memory_gib,
            weights=model.weights_gib
            + (model.drafter_gib if launch.drafter == "eagle" else 0.0)
            - min(launch.cpu_offload_gb, 0.7 * model.weights_gib),
            rest=CONTEXT_GIB + activations + logits,
            kv_per_token=model.kv_kib * (0.5 if launch.fp8_kv else 1.0) / KIB_PER_GIB,
            context_tokens=math.ceil(launch.max_model_len / launch.block_size) * launch.block_size,
            block_tokens=launch.block_size,
        )

    def _graphs_gib(self, launch: Launch) -> float:
        if launch.cudagraph_mode == "NONE":
            return 0.0
        kinds = 2.0 if launch.cudagraph_mode == "FULL_AND_PIECEWISE" else 1.0
        sizes = 3.0 + min(launch.capture_size, 2 * launch.max_num_seqs * (1 + launch.draft_tokens)) / 8.0
        return 0.1 + kinds * sizes * self.model.graph_mib / 1024.0

    def _crash(self, launch: Launch, memory: Footprint) -> Crash | None:
        if memory.pool_tokens < memory.context_tokens:
            violation = math.log(memory.context / max(memory.pool, 0.05 * memory.context))
            return Crash(
                FailureKind.KV_CACHE_TOO_SMALL, Stage.LAUNCHING, max(violation, 0.01), "the pool is below one context"
            )
        # Graphs are captured after the pool has taken its part, out of what the engine did not claim.
        left = self.card.memory_gib - self.card.others_gib - memory.requested
        graphs = self._graphs_gib(launch)
        if graphs > left:
            violation = math.log((memory.requested + graphs) / (memory.requested + left)) * 5.0
            return _out_of_memory(violation, Stage.LAUNCHING, MemoryPhase.GRAPH_CAPTURE)
        spike = 0.25 * self.model.act_gib_per_ktok * launch.max_num_batched_tokens / 1024.0
        if launch.drafter != "none":
            spike *= 1.0 + 0.15 * launch.draft_tokens
        if spike + graphs > left + 0.15:
            return _out_of_memory(math.log((spike + graphs) / (left + 0.15)), Stage.MEASURING, MemoryPhase.SERVING)
        return None

    def _hit_share(self, launch: Launch, memory: Footprint, running: float, per_request: float) -> float:
        """Share of a prompt's shared part that is found in the cache."""
        if not launch.prefix_caching or self.traffic.shared <= 0.0:
            return 0.0
        shared = self.traffic.shared
        aligned = math.floor(shared / launch.block_size) * launch.block_size / shared
        wanted = self.traffic.groups * shared
        room = max(memory.pool_tokens - running * per_request, 0.0)
        return 0.98 * aligned * (1.0 - math.exp(-1.6 * room / wanted))

    def _served(self, launch: Launch, memory: Footprint) -> Truth:
        traffic = self.traffic
        length = traffic.prompt + 0.5 * traffic.output + 0.5 * launch.block_size
        admitted = traffic.prompt + 0.12 * traffic.output + 0.5 * launch.block_size
        cached = traffic.shared if launch.prefix_caching else 0.0
        pool = memory.pool_tokens - 0.5 * min(cached * traffic.groups, 0.6 * memory.pool_tokens)
        own = max(length - cached, 0.2 * length)
        wanted = min(float(traffic.clients), float(launch.max_num_seqs))
        running = max(min(wanted, pool / max(admitted - cached, 0.2 * admitted)), 1.0)
        fill = running * own * (1.0 + 0.35 * traffic.output_cv / math.sqrt(running)) / pool
        preempted = 1.6 * max(fill - 0.94, 0.0) ** 1.3
        hit = self._hit_share(launch, memory, running, own)
        prefill = traffic.prompt - hit * traffic.shared
        work = prefill + preempted * (traffic.prompt + 0.5 * traffic.output)
        load = _Load(running, prefill, preempted, hit, min(fill, 1.0))
        if traffic.rate_per_s is not None:
            return Truth(self._open_metrics(launch, memory, load))
        return Truth(self._metrics(launch, memory, self._step(launch, running, work), load))

    def _open_metrics(self, launch: Launch, memory: Footprint, load: _Load) -> dict[str, float]:
        """Arrivals at a rate: more of them under way make steps longer, which keeps more of them under way."""
        traffic, rate_per_ms = self.traffic, (self.traffic.rate_per_s or 0.0) / 1e3
        per_step, verified = self._drafted(launch)
        steps = traffic.output / per_step
        decoding, mean_ms, wanted, used = 1.0, 10.0, 1.0, 0.0
        chunk = plain_ms = mixed_ms = 1.0
        for _ in range(60):
            room = max(launch.max_num_batched_tokens - decoding * verified, 16.0)
            threshold = launch.long_prefill_token_threshold
            chunk = min(room, load.prefill) if threshold == 0 else min(room, load.prefill, threshold)
            if not launch.chunked_prefill:
                chunk = min(max(chunk, traffic.prompt), room)
            plain_ms = self._step_ms(launch, decoding, decoding * verified, 0.0)
            mixed_ms = self._step_ms(launch, decoding, decoding * verified, chunk)
            used = rate_per_ms * mean_ms * load.prefill / chunk
            share = min(used, 1.0)
            mean_ms = 0.5 * mean_ms + 0.5 * ((1.0 - share) * plain_ms + share * mixed_ms)
            wanted = rate_per_ms * steps * mean_ms
            decoding = 0.5 * decoding + 0.5 * max(min(wanted, load.running), 0.2)
        chunks = max(load.prefill / chunk, 1.0)
        most = min(load.running, float(launch.max_num_seqs))
        # Of one queue for prefill and one for a place in the batch the longer one counts.
        prefill_wait_ms = _wait(used) * chunks * mixed_ms * 0.5 * (1.0 + traffic.prompt_cv**2)
        place_wait_ms = _wait((wanted / most) ** math.sqrt(most)) * steps * mean_ms / most
        over = max(used, wanted / most)
        queue_ms = max(prefill_wait_ms, place_wait_ms) + max(over - 1.0, 0.0) * 30e3
        preempted = load.preempted * min(wanted / load.running, 1.0) ** 2
        tpot_ms = mean_ms / per_step * (1.0 + 0.25 * preempted)
        ttft_ms = queue_ms + chunks * mixed_ms
        served_per_s = 1e3 * rate_per_ms / max(over, 1.0)
        share = min(used, 1.0)
        itl_weight = share / (share + 0.015)
        return {
            "output_tokens_per_s": served_per_s * traffic.output,
            "total_tokens_per_s": served_per_s * (traffic.output + traffic.prompt),
            "requests_per_s": served_per_s,
            "mean_ttft_ms": ttft_ms,
            "mean_tpot_ms": tpot_ms,
            "mean_e2e_ms": ttft_ms + tpot_ms * traffic.output,
            "p99_ttft_ms": chunks * mixed_ms * (1.0 + 1.7 * traffic.prompt_cv) + 3.6 * queue_ms,
            "p99_tpot_ms": tpot_ms * (1.15 + 0.9 * min(preempted, 1.5)),
            "p99_itl_ms": 1.12 * (plain_ms + itl_weight * (mixed_ms - plain_ms)),
            "p99_e2e_ms": 3.6 * queue_ms + ttft_ms + tpot_ms * traffic.output * (1.0 + 1.9 * traffic.output_cv),
            "error_rate": 0.0,
            "running_mean": decoding,
            "waiting_mean": queue_ms * rate_per_ms,
            "preemptions": preempted * served_per_s * 60.0,
            "prefix_cache_hit_rate": load.hit * traffic.shared / traffic.prompt,
            "kv_cache_usage_mean": min(load.fill * decoding / load.running, 1.0),
            "kv_cache_tokens": float(memory.pool_tokens),
            "spec_acceptance_rate": (per_step - 1.0) / max(launch.draft_tokens, 1),
            "requests_counted": max(served_per_s * 60.0, 200.0),
            "window_s": 60.0,
        }

    def _step(self, launch: Launch, running: float, work: float) -> _Step:
        """The steady state in which a step prefills what the requests that it finishes will need again."""
        traffic = self.traffic
        per_step, verified = self._drafted(launch)
        budget = float(launch.max_num_batched_tokens)
        needed = per_step * work / traffic.output
        decoding = min(running, max(budget / (needed + verified), 0.25))
        room = max(budget - decoding * verified, 16.0)
        threshold = launch.long_prefill_token_threshold
        # A threshold caps one prompt's chunk, not the sum of several that wait.
        chunk = min(room, work) if threshold == 0 else min(room, work, 1.35 * threshold)
        if not launch.chunked_prefill:
            chunk = min(max(chunk, traffic.prompt), room)
        prefilled = decoding * needed
        share = min(prefilled / chunk, 1.0)
        if prefilled > chunk:
            decoding = chunk / needed
        plain_ms = self._step_ms(launch, decoding, decoding * verified, 0.0)
        mixed_ms = self._step_ms(launch, decoding, decoding * verified, chunk)
        mean_ms = (1.0 - share) * plain_ms + share * mixed_ms
        return _Step(decoding, per_step, mean_ms, plain_ms, mixed_ms, share, chunk)

    def _drafted(self, launch: Launch) -> tuple[float, float]:
        """Tokens that a request gets and verifies in a step."""
        hit = self.traffic.hits.get(launch.drafter, 0.0) * (0.97 if launch.fp8_kv else 1.0)
        count = launch.draft_tokens
        return (1.0 - hit ** (count + 1)) / (1.0 - hit), 1.0 + count

    def _step_ms(self, launch: Launch, decoding: float, verified: float, chunk: float) -> float:
        card, model, traffic = self.card, self.model, self.traffic
        context = traffic.prompt + 0.5 * traffic.output
        kv_kib = model.kv_kib * (card.fp8_read if launch.fp8_kv else 1.0)
        # A chunk reads again what its prompt has in the cache; several short prompts may share one.
        reread = 0.5 * math.sqrt(chunk / (chunk + traffic.prompt)) + 0.5 if chunk > 0.0 else 0.0
        # Small blocks scatter the reads.
        scattered = 1.0 + 0.9 / launch.block_size
        offloaded = min(launch.cpu_offload_gb, 0.7 * model.weights_gib)
        read_ms = 1e3 * (
            (model.weights_gib - offloaded + (decoding + reread) * context * kv_kib / KIB_PER_GIB * scattered)
            / card.read_gib_s
            + offloaded / card.host_gib_s
        )
        tokens = verified + chunk * (1.0 + 0.5 * context / model.attention_span)
        filling = card.half_tokens if chunk > 0.0 else 0.2 * card.half_tokens
        compute_ms = 2.0 * model.parameters_b * (tokens + filling) / card.tflops
        return self._overhead_ms(launch, decoding, verified + chunk) + (read_ms**4 + compute_ms**4) ** 0.25

    def _overhead_ms(self, launch: Launch, decoding: float, tokens: float) -> float:
        card = self.card
        beyond = 1.0
        if launch.cudagraph_mode != "NONE":
            beyond = 1.0 / (1.0 + (launch.capture_size / tokens) ** 8)
            if launch.cudagraph_mode == "PIECEWISE":
                beyond = 0.3 + 0.7 * beyond
        overhead = card.overhead_ms + card.eager_ms * beyond + card.per_seq_us * decoding / 1e3
        if launch.async_scheduling and launch.drafter != "ngram":
            overhead -= 0.55 * (card.overhead_ms + card.per_seq_us * decoding / 1e3)
        if launch.prefix_caching:
            overhead += 0.02 * card.overhead_ms + 0.002 * decoding
        count = launch.draft_tokens
        if launch.drafter == "ngram":
            overhead += (0.02 + 0.006 * count) * decoding
        elif launch.drafter != "none":
            overhead += count * (0.35 + 1.3e3 * self.model.drafter_gib / card.read_gib_s) + 0.004 * count * decoding
        return overhead

    def _metrics(self, launch: Launch, memory: Footprint, step: _Step, load: _Load) -> dict[str, float]:
        traffic = self.traffic
        requests_per_s = step.decoding * step.per_step / (traffic.output * step.mean_ms) * 1e3
        requests_per_s /= 1.0 + 0.06 * load.preempted
        busy = min(step.mixed_share, 0.97)
        chunks = max(load.prefill / step.chunk, 1.0)
        prefill_ms = chunks * step.mixed_ms * (1.0 + 0.5 * busy / (1.0 - busy) / math.sqrt(chunks))
        waiting = max(traffic.clients - load.running, 0.0)
        queue_ms = 1e3 * waiting / requests_per_s
        tpot_ms = step.mean_ms / step.per_step * (1.0 + 0.25 * load.preempted)
        spread = math.sqrt(busy * (1.0 - busy) * step.per_step / traffic.output) * (step.mixed_ms / step.plain_ms - 1.0)
        luck = 0.10 * (step.per_step - 1.0)
        itl_weight = step.mixed_share / (step.mixed_share + 0.015)
        ttft_p99 = queue_ms * (1.0 + 0.5 * traffic.output_cv) + prefill_ms * (1.0 + 1.7 * traffic.prompt_cv)
        tpot_p99 = tpot_ms * (1.08 + 2.3 * spread + luck + 0.9 * min(load.preempted, 1.5))
        e2e = 1e3 * traffic.clients / requests_per_s
        too_long = _normal_tail(
            math.log(launch.max_model_len / (traffic.prompt + traffic.output))
            / math.hypot(traffic.prompt_cv, 0.5 * traffic.output_cv)
        )
        return {
            "output_tokens_per_s": requests_per_s * traffic.output,
            "total_tokens_per_s": requests_per_s * (traffic.output + traffic.prompt),
            "requests_per_s": requests_per_s,
            "mean_ttft_ms": queue_ms + prefill_ms,
            "mean_tpot_ms": tpot_ms,
            "mean_e2e_ms": e2e,
            "p99_ttft_ms": ttft_p99,
            "p99_tpot_ms": tpot_p99,
            "p99_itl_ms": 1.12 * (step.plain_ms + itl_weight * (step.mixed_ms - step.plain_ms)),
            "p99_e2e_ms": e2e * (1.0 + 1.9 * traffic.output_cv * 0.8 + 0.8 * min(load.preempted, 2.0)),
            "error_rate": too_long,
            "running_mean": load.running,
            "waiting_mean": waiting,
            "preemptions": load.preempted * requests_per_s * 60.0,
            "prefix_cache_hit_rate": load.hit * traffic.shared / traffic.prompt,
            "kv_cache_usage_mean": load.fill,
            "kv_cache_tokens": float(memory.pool_tokens),
            "spec_acceptance_rate": (step.per_step - 1.0) / max(launch.draft_tokens, 1),
            "requests_counted": max(requests_per_s * 60.0, 200.0),
            "window_s": 60.0,
        }


@dataclass(frozen=True, slots=True)
class _Load:
    """Requests that run, prefill a request needs (tokens), preemptions a request, hit share, fill of the pool."""

    running: float
    prefill: float
    preempted: float
    hit: float
    fill: float


def _wait(load: float) -> float:
    """Mean wait in service times; it stays finite, as a window is."""
    bound = min(load, 0.97)
    return bound / (1.0 - bound)


def _normal_tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def _out_of_memory(violation: float, stage: Stage, phase: MemoryPhase) -> Crash:
    graded = min(max(violation, 0.01), MOST_VIOLATION)
    return Crash(FailureKind.OUT_OF_MEMORY, stage, graded, "the device has no memory left", phase)
