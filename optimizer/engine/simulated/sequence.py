"""One request inside the engine: its tokens, the KV blocks it holds, and the hashes of the full ones."""

from __future__ import annotations

from dataclasses import dataclass, field


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
        cached_tokens: Prompt tokens that the prefix cache held at first admission; None before it.
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int
    tokens: list[int]
    computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    cached_tokens: int | None = None
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

    def append_token(self, vocab_size: int) -> int:
        """Generates the next token, a function of prompt and position alone, and returns its id (< vocab_size)."""
        token = hash((self._output_key, self.output_tokens)) % vocab_size
        self.tokens.append(token)
        return token

    def block_hashes(self, count: int, block_size: int) -> list[int]:
        """Hashes of the first `count` full blocks; each covers its block's tokens and all before them."""
        while len(self._block_hashes) < count:
            start = len(self._block_hashes) * block_size
            parent = self._block_hashes[-1] if self._block_hashes else 0
            self._block_hashes.append(hash((parent, *self.tokens[start : start + block_size])))
        return self._block_hashes[:count]
