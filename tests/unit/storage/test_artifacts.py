from __future__ import annotations

import dataclasses
import io
import json

import pytest
from optuna.artifacts.exceptions import ArtifactNotFound

from optimizer.core.errors import InputError
from optimizer.core.trial import TrialState
from optimizer.storage import attempt_folder
from optimizer.storage.artifacts import AttemptFiles


@pytest.fixture
def trial(records):
    return dataclasses.replace(records.trial(3, TrialState.FAILED), attempts=(records.attempt(1), records.attempt(2)))


@pytest.fixture
def folder(tmp_path):
    made = attempt_folder(tmp_path, "tiny", 3, 1)
    made.mkdir(parents=True)
    return made


def listed(files: AttemptFiles, trial) -> dict[str, str]:
    """File name as shown to artifact id."""
    described = [json.loads(value) for value in files.attributes(trial).values()]
    return {item["filename"]: item["artifact_id"] for item in described}


def test_files_of_every_attempt_are_listed_and_opened(tmp_path, trial, folder):
    (folder / "engine.log").write_bytes(b"INFO \xff\n")
    second = attempt_folder(tmp_path, "tiny", 3, 2)
    second.mkdir()
    (second / "requests.jsonl").write_text("{}\n")
    files = AttemptFiles(tmp_path)
    names = listed(files, trial)
    assert list(names) == ["attempt-1-engine.log", "attempt-2-requests.jsonl"]
    with files.open_reader(names["attempt-1-engine.log"]) as reader:
        assert reader.read() == b"INFO \xff\n"


def test_ids_are_the_same_in_every_process(tmp_path, trial, folder):
    (folder / "engine.log").touch()
    assert listed(AttemptFiles(tmp_path), trial) == listed(AttemptFiles(tmp_path), trial)


def test_a_trial_without_files_has_no_artifacts(tmp_path, trial):
    assert AttemptFiles(tmp_path).attributes(trial) == {}


def test_what_a_browser_would_run_is_not_listed(tmp_path, trial, folder):
    for name in ("page.html", "image.svg", "config.json.tmp", "noend"):
        (folder / name).touch()
    (folder / "folder.log").mkdir()
    assert listed(AttemptFiles(tmp_path), trial) == {}


def test_links_lead_nowhere(tmp_path, trial, folder):
    secret = tmp_path / "secret.log"
    secret.write_text("secret")
    (folder / "engine.log").symlink_to(secret)
    assert listed(AttemptFiles(tmp_path), trial) == {}


def test_a_folder_that_is_a_link_out_of_the_base_is_not_listed(tmp_path, trial):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "engine.log").write_text("secret")
    base = tmp_path / "base"
    link = attempt_folder(base, "tiny", 3, 1)
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    assert listed(AttemptFiles(base), trial) == {}


def test_a_file_swapped_for_a_link_is_not_opened(tmp_path, trial, folder):
    (folder / "engine.log").touch()
    files = AttemptFiles(tmp_path)
    (artifact_id,) = listed(files, trial).values()
    (folder / "engine.log").unlink()
    with pytest.raises(ArtifactNotFound):
        files.open_reader(artifact_id)
    (folder / "engine.log").symlink_to("/etc/hostname")
    with pytest.raises(ArtifactNotFound):
        files.open_reader(artifact_id)


@pytest.mark.parametrize("artifact_id", ["", "../../../etc/passwd", "/etc/passwd", "0" * 32])
def test_only_listed_ids_open_anything(tmp_path, artifact_id):
    with pytest.raises(ArtifactNotFound):
        AttemptFiles(tmp_path).open_reader(artifact_id)


def test_nothing_is_written_or_removed(tmp_path, trial, folder):
    (folder / "engine.log").write_text("kept")
    files = AttemptFiles(tmp_path)
    (artifact_id,) = listed(files, trial).values()
    with pytest.raises(InputError):
        files.write(artifact_id, io.BytesIO(b"other"))
    with pytest.raises(InputError):
        files.remove(artifact_id)
    assert (folder / "engine.log").read_text() == "kept"
