"""What all that `--json` writes has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class View(BaseModel):
    """One object of the JSON: it does not change once it is made, and has no key but those it declares."""

    model_config = ConfigDict(frozen=True, extra="forbid")
