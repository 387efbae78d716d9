"""Reads YAML strictly: one mapping a file, no key twice, every key text."""

from __future__ import annotations

from pathlib import Path

import yaml

from optimizer.core.errors import InputError


class _StrictLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys without a word; this loader refuses both."""


def _construct_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[str, object]:
    first: dict[str, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
        if key_node.tag != "tag:yaml.org,2002:str":
            written = getattr(key_node, "value", "")
            shown = written if isinstance(written, str) else "a list or mapping"
            raise InputError(
                f"line {line}, column {column}: the key {shown} is not text",
                hint="put quotes around it: YAML reads words such as on, off, yes, no, and numbers as values",
            )
        if key_node.value in first:
            raise InputError(
                f"line {line}, column {column}: the key {key_node.value} stands there twice; "
                f"the first is on line {first[key_node.value]}",
                hint="remove one of them",
            )
        first[key_node.value] = line
    loader.flatten_mapping(node)
    return {str(loader.construct_object(key, deep=True)): loader.construct_object(value, deep=True)
            for key, value in node.value}  # fmt: skip


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


def read_yaml(path: Path, *, origin: str) -> dict[str, object]:
    """The mapping in a YAML file.

    Args:
        path: The file.
        origin: How messages call it.

    Raises:
        InputError: The file cannot be read, is no YAML, holds a key twice, or is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{origin}: there is no such file", hint="check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{origin}: the file is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{origin}: the file cannot be read: {error.strerror}") from None
    return parse_yaml(text, origin=origin)


def parse_yaml(text: str, *, origin: str) -> dict[str, object]:
    """The mapping in YAML text; see `read_yaml`."""
    try:
        data = yaml.load(text, Loader=_StrictLoader)  # noqa: S506  (a SafeLoader)
    except InputError as error:
        raise InputError(f"{origin}: {error.message}", hint=error.hint) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise InputError(f"{origin}: {place}this is not YAML: {error.problem}", hint="check the indentation") from None
    except yaml.YAMLError as error:
        raise InputError(f"{origin}: this is not YAML: {error}") from None
    except RecursionError:
        raise InputError(f"{origin}: the file is nested too deeply") from None
    if not isinstance(data, dict):
        found = "empty" if data is None else f"a {type(data).__name__}"
        raise InputError(f"{origin}: the file must hold keys and values, but it is {found}")
    return data
