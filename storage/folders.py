"""Where the files of an attempt lie: engine log, request samples."""

from __future__ import annotations

import re
from pathlib import Path

from optimizer.core.errors import InputError

_STUDY_NAME = re.compile(r"\w[\w.+-]{0,99}")


def check_study_name(name: str) -> str:
    """The name itself, when it can be a folder's name on every system.

    Raises:
        InputError: It cannot.
    """
    if not _STUDY_NAME.fullmatch(name):
        raise InputError(
            f"study name {name!r} cannot be used: it also names a folder",
            hint="take 1 to 100 letters, digits, '_', '.', '+' or '-', the first a letter, digit or '_'",
        )
    return name


def attempt_folder(base: Path, study: str, number: int, attempt: int) -> Path:
    """The folder of one attempt, such as `BASE/my-study/trial-0003/attempt-1`; it is not created.

    Raises:
        InputError: The study's name cannot name a folder.
    """
    return base / check_study_name(study) / f"trial-{number:04d}" / f"attempt-{attempt}"
