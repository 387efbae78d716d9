"""Continuous batching as vLLM's V1 scheduler does it, without a model: admission, chunked prefill, preemption.

It has no clock and no randomness: the same calls in the same order give the same steps. A step is `schedule()`, then
whatever time `ScheduledStep.duration_s` says, then `complete()`.
"""

from __future__ import annotations

from collections import deque

from optimizer.core.errors import InputError
from optimizer.engine.simulated.block_pool import BlockPool
from optimizer.engine.simulated.sequence import Sequence
from optimizer.engine.simulated.step import ScheduledStep, SchedulerLimits, SchedulerStats, StepBuilder, StepOutput
from optimizer.engine.simulated.step_time import StepTimeModel


class Scheduler:
    """Decides, step by step, which sequences compute how many tokens, and which block holds them.

    Args:
        limits: Raises `InputError` when the usable blocks cannot hold one sequence of `max_model_len`: such a sequence
            would preempt itself for ever.
        step_time: Gives each step its duration.
    """

    def __init__(self, limits: SchedulerLimits, step_time: StepTimeModel) -> None:
        self.limits = limits
        self.stats = SchedulerStats(accepted_per_position=[0] * limits.speculative_tokens)
        self.pool = BlockPool(limits.num_gpu_blocks, prefix_caching=limits.enable_prefix_caching)
        pool_tokens = self.pool.num_usable * limits.block_size
        if pool_tokens < limits.max_model_len:
            raise InputError(f"a KV pool of {pool_tokens} tokens cannot hold max_model_len={limits.max_model_len}")
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._live: dict[str, Sequence] = {}
        self._step_time = step_time

    @property
    def has_work(self) -> bool:
        """True while a request is running or waiting."""
        return bool(self._live)

    def add(self, request_id: str, prompt: list[int], max_tokens: int, cache_salt: str = "") -> None:
        """Queues a request. Its output is cut where prompt and output reach `max_model_len`."""
        room = self.limits.max_model_len - len(prompt)
        if not prompt or room < 1 or max_tokens < 1:
            raise InputError(f"request {request_id}: no room for {len(prompt)} prompt tokens and {max_tokens} more")
        sequence = Sequence(request_id, len(prompt), min(max_tokens, room), list(prompt), cache_salt=cache_salt)
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
        building = StepBuilder(self.limits.max_num_batched_tokens)
        if self._schedule_running(building):
            self._schedule_waiting(building)
        return building.finished(self._step_time)

    def complete(self, step: ScheduledStep) -> list[StepOutput]:
        """Ends a step: every sequence whose tokens are all computed gets more, and the finished leave."""
        outputs: list[StepOutput] = []
        for request_id, computed in step.tokens.items():
            sequence = self._live.get(request_id)
            if sequence is None:
                continue
            drafted = step.drafts.get(request_id, 0)
            sequence.computed_tokens += computed - drafted
            if sequence.uncomputed_tokens == 0:
                outputs.append(self._sample(sequence, drafted))
        self._note_gauges()
        return outputs

    def _sample(self, sequence: Sequence, drafted: int) -> StepOutput:
        """Takes the right part of the draft, whose KV is there already, and one token more."""
        if sequence.output_tokens == 0:
            self.stats.prompt_tokens += sequence.prompt_tokens
            self.stats.prompt_tokens_cached += sequence.cached_tokens or 0
        accepted = sequence.accepted_drafts(drafted, self.limits.acceptance)
        self.stats.note_draft(drafted, accepted)
        token_ids = [sequence.append_token(self.limits.vocab_size) for _ in range(accepted + 1)]
        sequence.computed_tokens += accepted
        self.stats.generation_tokens += len(token_ids)
        finished = sequence.output_tokens >= sequence.max_tokens
        if finished:
            self.stats.finished_requests += 1
            self._drop(sequence)
        return StepOutput(sequence.request_id, token_ids, finished, sequence.cached_tokens or 0)

    def _schedule_running(self, building: StepBuilder) -> bool:
        """Continues running sequences, oldest first. False when a sequence had to be preempted."""
        preemptions = self.stats.preemptions
        index = 0
        while index < len(self.running) and building.budget > 0:
            sequence = self.running[index]
            drafted = self._draft_length(sequence, building)
            count = min(sequence.uncomputed_tokens, building.budget) + drafted
            if not self._grow_or_preempt(sequence, count, building):
                break
            building.put(sequence, count, drafted)
            index += 1
        return self.stats.preemptions == preemptions

    def _draft_length(self, sequence: Sequence, building: StepBuilder) -> int:
        """Draft tokens to score for a sequence that decodes; the one token beside them counts first."""
        if not sequence.decodes:
            return 0
        left = min(sequence.max_tokens - sequence.output_tokens, building.budget) - 1
        return min(self.limits.speculative_tokens, left)

    def _grow_or_preempt(self, sequence: Sequence, count: int, building: StepBuilder) -> bool:
        """Makes room for `count` tokens at the cost of the latest sequences; False if this one was the latest."""
        while not self._grow(sequence, count):
            victim = self.running.pop()
            self._free_blocks(victim)
            victim.computed_tokens = 0
            self.waiting.appendleft(victim)
            self.stats.preemptions += 1
            building.preempted.append(victim.request_id)
            if victim is sequence:
                return False
        return True

    def _schedule_waiting(self, building: StepBuilder) -> None:
        """Admits waiting sequences in order, as long as seats, token budget and free blocks last."""
        while self.waiting and building.budget > 0 and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting[0]
            is_new = sequence.cached_tokens is None
            if not self._claim_prefix(sequence):
                return
            if is_new:
                building.admitted.append(sequence.request_id)
            count = min(sequence.uncomputed_tokens, building.budget)
            self._grow(sequence, count)
            self.running.append(self.waiting.popleft())
            building.put(sequence, count, 0)

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
        sequence.hashed_blocks = len(cached)
        sequence.computed_tokens = len(cached) * size
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed_tokens
            if self.limits.enable_prefix_caching:
                self.stats.prefix_cache_queries += sequence.prompt_tokens
                self.stats.prefix_cache_hits += sequence.cached_tokens
        return True

    def _grow(self, sequence: Sequence, count: int) -> bool:
        """Allocates blocks for `count` more tokens and makes full ones findable; False when too few are free.

        Draft tokens reach beyond what the sequence holds: a block that they fill may yet turn out wrong.
        """
        size = self.limits.block_size
        end = sequence.computed_tokens + count
        new = self.pool.allocate(max(0, self._blocks_for(end) - len(sequence.blocks)))
        if new is None:
            return False
        sequence.blocks.extend(new)
        first, full = sequence.hashed_blocks, min(end, sequence.num_tokens) // size
        hashes = sequence.block_hashes(full, size)[first:]
        for block, block_hash in zip(sequence.blocks[first:full], hashes, strict=True):
            self.pool.remember(block, block_hash)
        sequence.hashed_blocks = full
        return True

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
        sequence.hashed_blocks = 0

    def _note_gauges(self) -> None:
        self.stats.running = len(self.running)
        self.stats.waiting = len(self.waiting)
        self.stats.kv_cache_usage = self.pool.usage
