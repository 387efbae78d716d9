"""Answers that must follow a JSON schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, model_validator

from optimizer.load.sources import path_from


class StructuredOutput(BaseModel):
    """A JSON schema, given inline or as a file. A file is read at once, so that the record holds the schema itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    json_schema: dict[str, JsonValue] = Field(min_length=1, description="The schema that every answer must follow.")

    @model_validator(mode="before")
    @classmethod
    def _file_read(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict) or "file" not in value:
            return value
        if "json_schema" in value:
            raise ValueError("json_schema and file are both given; give one of them")
        path = Path(path_from(info, str(value["file"])))
        rest = {key: given for key, given in value.items() if key != "file"}
        return {**rest, "json_schema": _read_schema(path)}

    @model_validator(mode="after")
    def _is_a_schema(self) -> Self:
        kind = self.json_schema.get("type")
        if kind is not None and not isinstance(kind, str | list):
            raise ValueError(f"json_schema.type: {kind!r} is no type of a JSON schema")
        return self

    def extra_body(self) -> dict[str, JsonValue]:
        """The request's fields, the same for `/v1/completions` and `/v1/chat/completions` of vLLM."""
        schema: JsonValue = {"name": "answer", "strict": True, "schema": self.json_schema}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _read_schema(path: Path) -> dict[str, JsonValue]:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"file: {path}: it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"file: {path}: it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"file: {path}: line {error.lineno}: this is not JSON: {error.msg}") from None
    if not isinstance(schema, dict):
        raise ValueError(f"file: {path}: a JSON schema is an object, and this is a {type(schema).__name__}")
    return schema
