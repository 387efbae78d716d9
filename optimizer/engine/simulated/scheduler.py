"""Continuous batching as vLLM's V1 scheduler does it, without a model: admission, chunked prefill, preemption.

It has no clock and no randomness: the same calls in the same order give the same steps. A step is `schedule()`, then
whatever time `ScheduledStep.duration_s` says, then `complete()`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from optimizer.core.errors import InputError
from optimizer.engine.simulated.block_pool import BlockPool
from optimizer.engine.simulated.sequence import Sequence
from optimizer.engine.simulated.step_time import StepTimeModel


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The engine flags that shape scheduling, under vLLM's names."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_gpu_blocks: int
    enable_prefix_caching: bool = True
    vocab_size: int = 512


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """What one step computes.

    Attributes:
        tokens: Request id to the tokens it computes in this step.
        prefill_tokens: Those that belong to prompts or to recomputation after a preemption.
        decode_seqs: Sequences that compute exactly the token sampled last.
        duration_s: How long the step lasts.
    """

    tokens: dict[str, int]
    prefill_tokens: int
    decode_seqs: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One generated token.

    Attributes:
        request_id: Whose it is.
        token_id: Below the vocabulary size.
        finished: True on the request's last token.
        cached_tokens: Prompt tokens that came from the prefix cache.
    """

    request_id: str
    token_id: int
    finished: bool
    cached_tokens: int


@dataclass(slots=True)
class SchedulerStats:
    """Counters since the start, and gauges as of the last completed step. Tokens unless named otherwise."""

    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0
    preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished_requests: int = 0
    aborted_requests: int = 0


@dataclass(slots=True)
class _Draft:
    """A step while it is put together."""

    budget: int
    tokens: dict[str, int] = field(default_factory=dict)
    prefill_tokens: int = 0
    decode_seqs: int = 0
    kv_tokens_read: int = 0


class Scheduler:
    """Decides, step by step, which sequences compute how many tokens, and which block holds them.

    Args:
        limits: Raises `InputError` when the pool cannot hold one sequence of `max_model_len`: such a sequence would
            preempt itself for ever.
        step_time: Gives each step its duration.
    """

    def __init__(self, limits: SchedulerLimits, step_time: StepTimeModel) -> None:
        pool_tokens = limits.num_gpu_blocks * limits.block_size
        if pool_tokens < limits.max_model_len:
            raise InputError(f"a KV pool of {pool_tokens} tokens cannot hold max_model_len={limits.max_model_len}")
        self.limits = limits
        self.stats = SchedulerStats()
        self.pool = BlockPool(limits.num_gpu_blocks, prefix_caching=limits.enable_prefix_caching)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._live: dict[str, Sequence] = {}
        self._step_time = step_time

    @property
    def has_work(self) -> bool:
        """True while a request is running or waiting."""
        return bool(self._live)

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        """Queues a request. Its output is cut where prompt and output reach `max_model_len`."""
        room = self.limits.max_model_len - len(prompt)
        if not prompt or room < 1 or max_tokens < 1:
            raise InputError(f"request {request_id}: no room for {len(prompt)} prompt tokens and {max_tokens} more")
        sequence = Sequence(request_id, len(prompt), min(max_tokens, room), list(prompt))
        self._live[request_id] = sequence
        self.waiting.append(sequence)

    def abort(self, request_id: str) -> None:
        """Drops a request wherever it is; unknown ids are ignored, as it may have ended meanwhile."""
        sequence = self._live.get(request_id)
        if sequence is not None:
            self.stats.aborted_requests += 1
            self._drop(sequence)
            self._note_gauges()

    def reset_prefix_cache(self) -> bool:
        """Forgets cached blocks; False while a request holds any."""
        return self.pool.forget_all()

    def schedule(self) -> ScheduledStep:
        """Puts the next step together: running sequences first, then, if nothing was preempted, waiting ones."""
        draft = _Draft(self.limits.max_num_batched_tokens)
        if self._schedule_running(draft):
            self._schedule_waiting(draft)
        duration_s = self._step_time.step_s(
            prefill_tokens=draft.prefill_tokens, decode_seqs=draft.decode_seqs, kv_tokens_read=draft.kv_tokens_read
        )
        return ScheduledStep(draft.tokens, draft.prefill_tokens, draft.decode_seqs, duration_s)

    def complete(self, step: ScheduledStep) -> list[TokenOutput]:
        """Ends a step: every sequence whose tokens are all computed gets one more, and the finished leave."""
        outputs: list[TokenOutput] = []
        for request_id, computed in step.tokens.items():
            sequence = self._live.get(request_id)
            if sequence is None:
                continue
            sequence.computed_tokens += computed
            if sequence.uncomputed_tokens == 0:
                outputs.append(self._sample(sequence))
        self._note_gauges()
        return outputs

    def _sample(self, sequence: Sequence) -> TokenOutput:
        if sequence.output_tokens == 0:
            self.stats.prompt_tokens += sequence.prompt_tokens
        token_id = sequence.append_token(self.limits.vocab_size)
        self.stats.generation_tokens += 1
        finished = sequence.output_tokens >= sequence.max_tokens
        if finished:
            self.stats.finished_requests += 1
            self._drop(sequence)
        return TokenOutput(sequence.request_id, token_id, finished, sequence.cached_tokens or 0)

    def _schedule_running(self, draft: _Draft) -> bool:
        """Continues running sequences, oldest first. False when a sequence had to be preempted."""
        preemptions = self.stats.preemptions
        index = 0
        while index < len(self.running) and draft.budget > 0:
            sequence = self.running[index]
            count = min(sequence.uncomputed_tokens, draft.budget)
            if not self._grow_or_preempt(sequence, count):
                break
            self._put(draft, sequence, count)
            index += 1
        return self.stats.preemptions == preemptions

    def _grow_or_preempt(self, sequence: Sequence, count: int) -> bool:
        """Makes room for `count` tokens at the cost of the latest sequences; False if this one was the latest."""
        while not self._grow(sequence, count):
            victim = self.running.pop()
            self._free_blocks(victim)
            victim.computed_tokens = 0
            self.waiting.appendleft(victim)
            self.stats.preemptions += 1
            if victim is sequence:
                return False
        return True

    def _schedule_waiting(self, draft: _Draft) -> None:
        """Admits waiting sequences in order, as long as seats, token budget and free blocks last."""
        while self.waiting and draft.budget > 0 and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting[0]
            if not self._claim_prefix(sequence):
                return
            count = min(sequence.uncomputed_tokens, draft.budget)
            self._grow(sequence, count)
            self.running.append(self.waiting.popleft())
            self._put(draft, sequence, count)

    def _claim_prefix(self, sequence: Sequence) -> bool:
        """Takes hold of the cached prefix if the whole rest fits into free blocks too (vLLM's full-input reserve).

        At least the last token is always computed, since its logits give the next one.
        """
        size = self.limits.block_size
        hashes = sequence.block_hashes((sequence.num_tokens - 1) // size, size)
        cached = self.pool.cached_prefix(hashes)
        missing = self._blocks_for(sequence.num_tokens) - len(cached)
        if missing > self.pool.num_free - self.pool.num_free_among(cached):
            return False
        self.pool.share(cached)
        sequence.blocks = cached
        sequence.computed_tokens = len(cached) * size
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed_tokens
            if self.limits.enable_prefix_caching:
                self.stats.prefix_cache_queries += sequence.prompt_tokens
                self.stats.prefix_cache_hits += sequence.cached_tokens
        return True

    def _grow(self, sequence: Sequence, count: int) -> bool:
        """Allocates blocks for `count` more tokens and makes full ones findable; False when too few are free."""
        size = self.limits.block_size
        end = sequence.computed_tokens + count
        new = self.pool.allocate(max(0, self._blocks_for(end) - len(sequence.blocks)))
        if new is None:
            return False
        sequence.blocks.extend(new)
        first, full = sequence.computed_tokens // size, end // size
        hashes = sequence.block_hashes(full, size)[first:]
        for block, block_hash in zip(sequence.blocks[first:full], hashes, strict=True):
            self.pool.remember(block, block_hash)
        return True

    def _put(self, draft: _Draft, sequence: Sequence, count: int) -> None:
        draft.budget -= count
        draft.tokens[sequence.request_id] = count
        draft.kv_tokens_read += sequence.computed_tokens
        if sequence.output_tokens > 0 and sequence.uncomputed_tokens == 1:
            draft.decode_seqs += 1
        else:
            draft.prefill_tokens += count

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _drop(self, sequence: Sequence) -> None:
        del self._live[sequence.request_id]
        self._free_blocks(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def _free_blocks(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []

    def _note_gauges(self) -> None:
        self.stats.running = len(self.running)
        self.stats.waiting = len(self.waiting)
        self.stats.kv_cache_usage = self.pool.usage
