"""Where requests come from when their lengths are not drawn: files of conversations, prompts or recorded traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

FOLDER = "folder"
"""Key of the validation context under which the folder stands that relative paths begin at."""


def path_from(folder_of: ValidationInfo, path: str) -> str:
    """The path as an absolute one; a relative one begins at the folder of the file that names it."""
    folder = (folder_of.context or {}).get(FOLDER)
    return str((Path(folder or ".") / Path(path).expanduser()).absolute())


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(min_length=1, description="The file, .gz or plain; a relative path begins at this YAML file.")
    rows: int | None = Field(None, ge=1, description="Use so many rows from the beginning; null uses all.")

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: str, info: ValidationInfo) -> str:
        return path_from(info, value)


class ShareGptSource(_File):
    """A JSON list of `{"conversations": [{"from": ..., "value": ...}, ...]}`.

    The first question of each conversation is asked; with `sessions` all of them are, one after the other. A
    conversation that does not begin with a question and its answer is left out, and counted.
    """

    kind: Literal["sharegpt"]


class JsonlSource(_File):
    """A file with one JSON object a line: `{"prompt": text, token ids or messages, "output_tokens": n}`."""

    kind: Literal["jsonl"]


class Columns(BaseModel):
    """What the columns of a trace are called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timestamp: str = Field("timestamp_s", min_length=1, description="Seconds, or a date with time (ISO 8601).")
    prompt_tokens: str = Field("prompt_tokens", min_length=1, description="Length of the prompt.")
    output_tokens: str = Field("output_tokens", min_length=1, description="Length of the answer.")


class TraceSource(_File):
    """Recorded traffic, as JSON lines or CSV with a head: when each request came, and its lengths or its prompt."""

    kind: Literal["trace"]
    columns: Columns = Field(default_factory=Columns, description="What its columns are called.")


Source: TypeAlias = Annotated[ShareGptSource | JsonlSource | TraceSource, Field(discriminator="kind")]
"""A file of requests, told apart by `kind`."""
