"""What one step of the engine computes, gives, and counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from optimizer.engine.simulated.sequence import Sequence
from optimizer.engine.simulated.step_time import StepTimeModel


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The engine flags that shape scheduling, under vLLM's names.

    Attributes:
        num_gpu_blocks: The null block included.
        speculative_tokens: Draft tokens for each decoding sequence and step; 0 without speculation.
        acceptance: Probability that a draft token is right when those before it are.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_gpu_blocks: int
    enable_prefix_caching: bool = True
    vocab_size: int = 512
    speculative_tokens: int = 0
    acceptance: float = 0.6


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """What one step computes.

    Attributes:
        tokens: Request id to the tokens it computes in this step.
        drafts: Request id to how many of these are draft tokens; requests without are left out.
        admitted: Requests that run for the first time.
        preempted: Requests that lost their blocks to make this step possible.
        prefill_tokens: Those that belong to prompts or to recomputation after a preemption.
        decode_seqs: Sequences that compute exactly the token sampled last, and their draft.
        duration_s: How long the step lasts.
    """

    tokens: dict[str, int]
    drafts: dict[str, int]
    admitted: list[str]
    preempted: list[str]
    prefill_tokens: int
    decode_seqs: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step gives one request.

    Attributes:
        request_id: Whose it is.
        token_ids: One token, and as many more as its draft had right; each below the vocabulary size.
        finished: True with the request's last token.
        cached_tokens: Prompt tokens that came from the prefix cache.
    """

    request_id: str
    token_ids: list[int]
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
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    finished_requests: int = 0
    aborted_requests: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    def note_draft(self, drafted: int, accepted: int) -> None:
        """Counts one sequence's draft, if it had one."""
        self.drafts += drafted > 0
        self.draft_tokens += drafted
        self.accepted_tokens += accepted
        for position in range(accepted):
            self.accepted_per_position[position] += 1


@dataclass(slots=True)
class StepBuilder:
    """A step while it is put together; `budget` is how many tokens it may still take."""

    budget: int
    tokens: dict[str, int] = field(default_factory=dict)
    drafts: dict[str, int] = field(default_factory=dict)
    admitted: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    prefill_tokens: int = 0
    decode_seqs: int = 0
    kv_tokens_read: int = 0

    def put(self, sequence: Sequence, count: int, drafted: int) -> None:
        """Adds `count` tokens of a sequence, the last `drafted` of which are its draft."""
        self.budget -= count
        self.tokens[sequence.request_id] = count
        self.kv_tokens_read += sequence.computed_tokens
        if drafted:
            self.drafts[sequence.request_id] = drafted
        if sequence.decodes:
            self.decode_seqs += 1
        else:
            self.prefill_tokens += count

    def finished(self, step_time: StepTimeModel) -> ScheduledStep:
        """The step as it will run."""
        duration_s = step_time.step_s(
            prefill_tokens=self.prefill_tokens,
            decode_seqs=self.decode_seqs,
            kv_tokens_read=self.kv_tokens_read,
            draft_tokens=sum(self.drafts.values()),
            draft_passes=max(self.drafts.values(), default=0),
        )
        return ScheduledStep(
            self.tokens,
            self.drafts,
            self.admitted,
            self.preempted,
            self.prefill_tokens,
            self.decode_seqs,
            duration_s,
        )
