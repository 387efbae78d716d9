"""Workloads that come with the package, and workload files of a user's own."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from optimizer.config.named_file import built_in_names, find_file
from optimizer.config.problems import input_error
from optimizer.config.yaml_reader import read_yaml
from optimizer.load import Workload
from optimizer.load.sources import FOLDER


@cache
def _folder() -> Path:
    return Path(str(resources.files("optimizer.load"))) / "builtin"


def built_in_workloads() -> list[Workload]:
    """The workloads that come with the package, by name."""
    return [load_workload(name) for name in built_in_names(_folder())]


def load_workload(name_or_path: str) -> Workload:
    """Reads a workload by the name of a built-in one or the path of a YAML file; its own file is checked as well.

    Raises:
        InputError: There is no such workload, or its file or a row of its requests is wrong; file, key or line, and
            value are named.
    """
    path, origin = find_file(name_or_path, _folder(), "workload")
    return _read(path, origin=origin)


def _read(path: Path, *, origin: str) -> Workload:
    data = read_yaml(path, origin=origin)
    try:
        workload = Workload.model_validate(data, context={FOLDER: path.parent})
    except ValidationError as error:
        raise input_error(error, model=Workload, data=data, origin=origin) from None
    check_requests(workload)
    return workload


def check_requests(workload: Workload) -> None:
    """Reads the workload's file of requests from end to end, if it has one, so that no trial meets a wrong row.

    Raises:
        InputError: The file is wrong; the line is named.
    """
    _ = workload.dataset
