"""A model's `config.json` as typed fields: what is missing, of another type or absurd is named, never guessed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MAX_FILE_BYTES = 8 * 1024**2
"""A configuration has some kB; those that list every quantized module have some hundred."""
_SHOWN_CHARS = 60


class CannotPredict(Exception):
    """The account cannot tell what an engine would take. Not an error of the study, which goes on without it.

    Attributes:
        reason: Why, for a person; reads on after "cannot predict: ".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ConfigFields:
    """Reads fields of one JSON object.

    Args:
        data: The object.
        origin: Where it stands, for messages: a file, or a key within it.
    """

    def __init__(self, data: Mapping[str, Any], origin: str) -> None:
        self._data = data
        self.origin = origin

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._data.get(name) is not None

    def size(self, *names: str, most: int, least: int = 1, default: int | None = None) -> int:
        """The first of these fields that is given, a whole number from `least` to `most`.

        Raises:
            CannotPredict: None is given and there is no default, or it is no such number.
        """
        for name in names:
            if self.has(name):
                return self._whole(name, least, most)
        if default is None:
            raise CannotPredict(f"{self.origin} lacks {' or '.join(names)}")
        return default

    def switch(self, name: str, *, default: bool) -> bool:
        """A field that is true or false.

        Raises:
            CannotPredict: It is something else.
        """
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, *names: str) -> str | None:
        """The first of these fields that is given, as text; None when none is.

        Raises:
            CannotPredict: It is no text.
        """
        for name in names:
            if self.has(name):
                value = self._data[name]
                if not isinstance(value, str):
                    raise self._wrong(name, value, "text")
                return value
        return None

    def texts(self, name: str) -> list[str]:
        """A list of texts; empty when the field is missing.

        Raises:
            CannotPredict: It is no list of texts.
        """
        value = self._data.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self._wrong(name, value, "a list of texts")
        return value

    def numbers(self, name: str) -> list[int]:
        """A list of whole numbers; empty when the field is missing.

        Raises:
            CannotPredict: It is no list of whole numbers.
        """
        value = self._data.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in value):
            raise self._wrong(name, value, "a list of whole numbers")
        return value

    def section(self, name: str) -> ConfigFields | None:
        """The object under a field; None when it is missing.

        Raises:
            CannotPredict: It is no object.
        """
        value = self._data.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return ConfigFields(value, f"{name} in {self.origin}")

    def sections(self) -> list[ConfigFields]:
        """Every object among the fields."""
        return [
            ConfigFields(value, f"{name} in {self.origin}")
            for name, value in self._data.items()
            if isinstance(value, dict)
        ]

    def _whole(self, name: str, least: int, most: int) -> int:
        value = self._data[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(name, value, f"a whole number from {least} to {most}")
        return value

    def _wrong(self, name: str, value: object, wanted: str) -> CannotPredict:
        return CannotPredict(f"{name} = {shown(value)} in {self.origin} is not {wanted}")


def read_json_object(file: Path) -> ConfigFields:
    """The fields of a JSON file.

    Raises:
        CannotPredict: It is no regular file, cannot be read, is too large, or is no JSON object.
    """
    try:
        if not file.is_file():
            raise CannotPredict(f"there is no file {file}")
        size = file.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise CannotPredict(f"{file} has {size / 1024**2:.0f} MiB, which is no configuration")
        data = json.loads(file.read_bytes())
    except OSError as error:
        raise CannotPredict(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CannotPredict(f"{file} is no JSON: {shown(error)}") from None
    if not isinstance(data, dict):
        raise CannotPredict(f"{file} holds no JSON object")
    return ConfigFields(data, str(file))


def shown(value: object) -> str:
    """A value for a message, cut where it is long; a number of thousands of digits is named by its length."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
