"""The files of a trial's attempts as artifacts that optuna-dashboard can list and open, and nothing else can."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import BinaryIO

from optuna.artifacts.exceptions import ArtifactNotFound

from optimizer.core.errors import InputError
from optimizer.core.record import TrialRecord
from optimizer.storage.folders import attempt_folder

ARTIFACT_PREFIX = "artifacts:"
"""Start of the trial system attribute that describes an artifact; the rest is its id."""

_MEDIA_TYPES = {
    ".log": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".yaml": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".gz": "application/gzip",
    ".npz": "application/octet-stream",
    ".parquet": "application/octet-stream",
}
"""What is shown, by suffix. Nothing that a browser would run."""

_NAMESPACE = uuid.UUID("5d1f8a52-6a0e-4c0b-9a3c-1f6f0f6f7a11")


class AttemptFiles:
    """A read-only artifact store over the attempt folders.

    An id opens only a file that `attributes` listed before, so no request can name a path; the dashboard lists a
    trial's artifacts before it opens one. Ids are the same in every process.

    Args:
        base: Folder that holds the studies' folders; what resolves to outside of it is neither listed nor opened.
    """

    def __init__(self, base: Path) -> None:
        self._base = base.resolve()
        self._files: dict[str, Path] = {}

    def attributes(self, trial: TrialRecord) -> dict[str, str]:
        """Optuna's system attributes that describe the trial's files, in the order of attempts and names."""
        attributes = {}
        for attempt in trial.attempts:
            for path in self._listed(attempt_folder(self._base, trial.study, trial.number, attempt.number)):
                artifact_id = str(uuid.uuid5(_NAMESPACE, path.relative_to(self._base).as_posix()))
                self._files[artifact_id] = path
                attributes[ARTIFACT_PREFIX + artifact_id] = json.dumps(
                    {
                        "artifact_id": artifact_id,
                        "filename": f"attempt-{attempt.number}-{path.name}",
                        "mimetype": _MEDIA_TYPES[path.suffix],
                        "encoding": None,
                    }
                )
        return attributes

    def _listed(self, folder: Path) -> list[Path]:
        if not folder.is_dir() or not folder.resolve().is_relative_to(self._base):
            return []
        return sorted(
            path
            for path in folder.iterdir()
            if path.suffix in _MEDIA_TYPES and path.is_file() and not path.is_symlink()
        )

    def open_reader(self, artifact_id: str) -> BinaryIO:
        """Open a listed file.

        Raises:
            ArtifactNotFound: The id was not listed, or the file is gone or became a link.
        """
        path = self._files.get(artifact_id)
        if path is None:
            raise ArtifactNotFound(f"no artifact {artifact_id}")
        try:
            return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
        except OSError as error:
            raise ArtifactNotFound(f"artifact {artifact_id} cannot be opened: {error.strerror}") from error

    def write(self, artifact_id: str, content_body: BinaryIO) -> None:
        """Refuse.

        Raises:
            InputError: Always.
        """
        raise InputError(f"artifact {artifact_id} cannot be stored: the files of a study are only shown here")

    def remove(self, artifact_id: str) -> None:
        """Refuse.

        Raises:
            InputError: Always.
        """
        raise InputError(f"artifact {artifact_id} cannot be removed: the files of a study are only shown here")
