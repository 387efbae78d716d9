"""How long one engine step lasts: an analytic model of continuous batching.

    step_s = overhead + (prefill + draft tokens) * a + decoding sequences * b + KV tokens read * c + draft passes * d

The constants have the order of magnitude of a 1B to 2B model on a mid-range GPU; they are no measurement of any device.
No clock is read here, so the same load takes the same time whether it is waited for or only added up.
"""

from __future__ import annotations

from dataclasses import dataclass

OVERHEAD_S = 6e-3
"""Kernel launches, sampling and one read of the weights."""
PREFILL_S_PER_TOKEN = 40e-6
"""Prefill is bound by compute: 25,000 prompt tokens a second. Scoring a draft token costs the same."""
DECODE_S_PER_SEQ = 60e-6
"""The part of a decode that grows with the batch."""
KV_READ_S_PER_TOKEN = 60e-9
"""Attention reads the whole context: 64 KiB a token in 16 bits at 1 TB/s."""


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """Turns what a step does into seconds.

    Attributes:
        speed: Divides every step time; 20 makes tests twenty times as fast and changes no ratio.
        kv_element_bytes: Of the KV cache; reading it takes time in proportion.
        draft_pass_s: Seconds for each position of a draft.
    """

    speed: float = 1.0
    kv_element_bytes: int = 2
    draft_pass_s: float = 0.0

    def step_s(
        self,
        *,
        prefill_tokens: int,
        decode_seqs: int,
        kv_tokens_read: int,
        draft_tokens: int = 0,
        draft_passes: int = 0,
    ) -> float:
        """Duration of a step in seconds.

        Args:
            prefill_tokens: Prompt tokens (or recomputed tokens) that pass through the model.
            decode_seqs: Sequences that add one token.
            kv_tokens_read: Cached tokens that attention reads, over all sequences of the step.
            draft_tokens: Draft tokens that are scored, over all sequences.
            draft_passes: Length of the longest draft.
        """
        model_s = (
            OVERHEAD_S
            + (prefill_tokens + draft_tokens) * PREFILL_S_PER_TOKEN
            + decode_seqs * DECODE_S_PER_SEQ
            + kv_tokens_read * KV_READ_S_PER_TOKEN * self.kv_element_bytes / 2
            + draft_passes * self.draft_pass_s
        )
        return model_s / self.speed
