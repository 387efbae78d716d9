"""Where a live engine answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class EngineEndpoint:
    """A live engine's address.

    Attributes:
        base_url: Such as `http://127.0.0.1:41234`; no trailing slash.
        model: The served model name to put into requests; of an engine of ours it is the launch nonce.
        api_key: Bearer token, or None. Never printed.
        vocab_size: Token ids in prompts must lie below it.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    vocab_size: int = 512

    @property
    def port(self) -> int:
        """The TCP port."""
        return urlsplit(self.base_url).port or 80

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers that every request carries."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
