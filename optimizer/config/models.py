"""Finds the model that a space or an option names: a bundled shape, a local directory, or a hub id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

from optimizer.config.problems import nearest
from optimizer.core.errors import InputError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model and where it lies.

    Attributes:
        name: What stands for it in the identity of a study: bundled name, absolute local path, or hub id.
        target: What the engine is told to serve: an absolute local path or a hub id.
        kind: Which of the three it is; or `elsewhere`, a path on the machine of somebody else's engine.
    """

    name: str
    target: str
    kind: Literal["bundled", "local", "hub", "elsewhere"]


@cache
def package_folder(name: str) -> Path:
    """A data folder of `optimizer.search_spaces`, which is always installed as plain files."""
    return Path(str(resources.files("optimizer.search_spaces"))) / name


def bundled_models() -> tuple[str, ...]:
    """The names of the model shapes that come with the package."""
    return tuple(sorted(entry.parent.name for entry in package_folder("models").glob("*/config.json")))


def resolve_model(text: str, *, origin: str, base_dir: Path | None = None, must_be_here: bool = True) -> ModelSource:
    """Finds a model by name.

    Args:
        text: Bundled name, local path, or hub id `org/name`.
        origin: Where the text came from, for messages.
        base_dir: Folder that relative paths are tried from before the current one, such as that of the space file.
        must_be_here: Whether this machine must hold what looks like a path.

    Raises:
        InputError: The text looks like a path and there is no model directory; or it is no name of any kind.
    """
    if text in bundled_models():
        return ModelSource(text, str(package_folder("models").resolve() / text), "bundled")
    path = Path(text).expanduser()
    candidates = [base_dir / path] if base_dir is not None and not path.is_absolute() else []
    for candidate in (*candidates, path):
        if text and (candidate / "config.json").is_file():
            absolute = str(candidate.resolve())
            return ModelSource(absolute, absolute, "local")
    looks_like_path = text.startswith(("/", ".", "~")) or text.count("/") > 1
    if looks_like_path and not must_be_here:
        return ModelSource(text, text, "elsewhere")
    if looks_like_path or (text and path.exists()):
        raise InputError(
            f"{origin}: model {text!r}: {_missing(path)}",
            hint="give the directory that holds the model's config.json and weights, or a hub id such as org/name",
        )
    if _HUB_ID.fullmatch(text):
        return ModelSource(text, text, "hub")
    raise InputError(
        f"{origin}: model {text!r} is neither a bundled shape nor a local directory nor a hub id"
        f"{nearest(text, bundled_models())}",
        hint=f"bundled: {', '.join(bundled_models())}; a hub id has the form org/name",
    )


def _missing(path: Path) -> str:
    if not path.exists():
        return "there is no such directory"
    return "there is no config.json in it" if path.is_dir() else "this is a file, not a model directory"
