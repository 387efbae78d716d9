from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.config import bundled_models, resolve_model
from optimizer.core.errors import InputError


def model_dir(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}", encoding="utf-8")
    return path


def test_a_bundled_shape_is_named_in_the_identity_and_found_on_disk():
    source = resolve_model("tiny-kv", origin="--model")
    assert (source.name, source.kind) == ("tiny-kv", "bundled")
    assert (Path(source.target) / "config.json").is_file()
    assert Path(source.target).is_absolute()
    assert "tiny-kv" in bundled_models()


def test_a_relative_path_begins_at_the_space_file_then_here(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    mine = model_dir(there, "org/m")
    model_dir(here, "org/m")
    other = model_dir(here, "only")
    monkeypatch.chdir(here)
    assert resolve_model("org/m", origin="x", base_dir=there).target == str(mine)
    assert resolve_model("./only", origin="x", base_dir=there).target == str(other)
    assert resolve_model(str(mine), origin="x").kind == "local"


def test_a_hub_id_is_taken_as_it_is():
    source = resolve_model("Qwen/Qwen2.5-14B-Instruct", origin="--model")
    assert (source.name, source.target, source.kind) == ("Qwen/Qwen2.5-14B-Instruct",) * 2 + ("hub",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("./none", "there is no such directory"),
        ("/none/here", "there is no such directory"),
        ("~/none-here", "there is no such directory"),
        ("a/b/c", "there is no such directory"),
        ("empty", "there is no config.json in it"),
        ("file.gguf", "this is a file"),
        ("tiny_kv", "neither a bundled shape nor a local directory nor a hub id; did you mean tiny-kv?"),
        ("gpt 2", "neither a bundled shape"),
        ("", "neither a bundled shape"),
    ],
)
def test_what_is_no_model_is_refused_with_its_text_and_origin(tmp_path, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.gguf").write_text("", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        resolve_model(text, origin="--model")
    assert caught.value.message.startswith(f"--model: model {text!r}")
    assert words in caught.value.message
