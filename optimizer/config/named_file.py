"""Files that people name: one that comes with the package by its name, one of their own by its path."""

from __future__ import annotations

from pathlib import Path

from optimizer.config.problems import nearest
from optimizer.core.errors import InputError


def built_in_names(folder: Path) -> list[str]:
    """The names of the YAML files in a folder of the package, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def find_file(name_or_path: str, folder: Path, what: str) -> tuple[Path, str]:
    """The YAML file that is meant, and how messages call it. A path need not exist.

    Args:
        name_or_path: A built-in name, or a path.
        folder: Holds the built-in files.
        what: What the file is, such as `workload`.

    Raises:
        InputError: It is no built-in name, and looks like no path.
    """
    names = built_in_names(folder)
    if name_or_path in names:
        built_in = folder / f"{name_or_path}.yaml"
        return built_in, built_in.name
    path = Path(name_or_path).expanduser()
    looks_like_path = "/" in name_or_path or path.suffix in (".yaml", ".yml")
    if not looks_like_path and not path.is_file():
        raise InputError(
            f"there is no {what} {name_or_path!r}{nearest(name_or_path, names)}",
            hint=f"built-in: {', '.join(names)}; or give the path of a YAML file",
        )
    return path, str(path)
