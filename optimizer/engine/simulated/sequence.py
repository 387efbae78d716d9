"""One request inside the engine: its tokens, the KV blocks it holds, and the hashes of the full ones."""

from __future__ import annotations

from dataclasses import dataclass, field

_ACCEPTANCE_DRAW = 1
"""Keeps the draw of acceptance apart from that of the token at the same position."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way through the scheduler.

    Attributes:
        request_id: Unique among the live requests.
        prompt_tokens: Length of the prompt.
        max_tokens: Output tokens after which it ends. There is no end-of-sequence token here.
        tokens: Prompt and output token ids so far.
        computed_tokens: Leading tokens whose KV is in the pool; back to 0 on preemption.
        blocks: Block ids, in token order.
        hashed_blocks: Leading blocks that are full and known to the prefix cache.
        cached_tokens: Prompt tokens that the prefix cache held at first admission; None before it.
        cache_salt: Begins the chain of its block hashes, so that only requests of the same salt share blocks.
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int
    tokens: list[int]
    computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    hashed_blocks: int = 0
    cached_tokens: int | None = None
    cache_salt: str = ""
    _block_hashes: list[int] = field(default_factory=list)
    _output_key: int = 0

    def __post_init__(self) -> None:
        self._output_key = hash(tuple(self.tokens))

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.tokens)

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def uncomputed_tokens(self) -> int:
        """Tokens that still have to pass through the model before the next one can be sampled."""
        return len(self.tokens) - self.computed_tokens

    @property
    def decodes(self) -> bool:
        """True when exactly the token sampled last has to pass through the model."""
        return self.output_tokens > 0 and self.uncomputed_tokens == 1

    def accepted_drafts(self, drafted: int, acceptance: float) -> int:
        """How many leading tokens of a draft are right: each with that probability, drawn by prompt and position."""
        for count in range(drafted):
            if hash((self._output_key, self.output_tokens + count, _ACCEPTANCE_DRAW)) % 1000 >= 1000 * acceptance:
                return count
        return drafted

    def append_token(self, vocab_size: int) -> int:
        """Generates the next token, a function of prompt and position alone, and returns its id (< vocab_size)."""
        token = hash((self._output_key, self.output_tokens)) % vocab_size
        self.tokens.append(token)
        return token

    def block_hashes(self, count: int, block_size: int) -> list[int]:
        """Hashes of the first `count` full blocks; each covers its block's tokens and all before them."""
        while len(self._block_hashes) < count:
            start = len(self._block_hashes) * block_size
            parent = self._block_hashes[-1] if self._block_hashes else hash(self.cache_salt)
            self._block_hashes.append(hash((parent, *self.tokens[start : start + block_size])))
        return self._block_hashes[:count]
