"""Text of a wanted number of tokens, and what is said when there is no tokenizer."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from optimizer.config.models import package_folder
from optimizer.core.errors import HostError, InputError
from optimizer.load.tokenizer import ModelTokenizer, load_tokenizer

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def byte_folder() -> str:
    """The bundled model, whose vocabulary is bytes."""
    return str(package_folder("models") / "tiny-kv")


@pytest.fixture(scope="module")
def word_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A byte-level vocabulary of merged pairs, as large models have, learnt from a few made-up words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    letters = "bcdfghklmnprstvw"
    words = [f"{a}o{b}e{c}" for a in letters for b in letters[:8] for c in letters[:4]]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([" ".join(words)] * 3, trainer)
    folder = tmp_path_factory.mktemp("words")
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.mark.parametrize("tokens", [1, 2, 17, 400])
@pytest.mark.parametrize("kind", ["byte_folder", "word_folder"])
def test_text_has_the_wanted_number_of_tokens(request: pytest.FixtureRequest, kind: str, tokens: int) -> None:
    tokenizer = load_tokenizer(request.getfixturevalue(kind))
    text = tokenizer.write(tokens, np.random.default_rng(1))
    assert tokenizer.count(text) == tokens
    assert tokenizer.write(tokens, np.random.default_rng(1)) == text
    if tokens > 2:
        assert tokenizer.write(tokens, np.random.default_rng(2)) != text


def test_parts_written_one_by_one_have_their_lengths_together(word_folder: str) -> None:
    tokenizer = load_tokenizer(word_folder)
    parts = [tokenizer.write(tokens, np.random.default_rng(tokens)) for tokens in (33, 5, 12)]
    assert tokenizer.count("".join(parts)) == 50


def test_a_text_is_encoded_as_the_engine_does(byte_folder: str) -> None:
    tokenizer = load_tokenizer(byte_folder)
    assert (tokenizer.count("ab"), len(tokenizer.encode("ab"))) == (2, 2)


def test_another_process_gets_the_same_one(byte_folder: str) -> None:
    tokenizer = load_tokenizer(byte_folder)
    assert isinstance(pickle.loads(pickle.dumps(tokenizer)), ModelTokenizer)  # noqa: S301


def test_a_model_without_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer missing: .* without tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(InputError, match=r"tokenizer missing: .* a hub id"):
        load_tokenizer("org/name")


def test_a_host_without_the_library_is_told(byte_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load_tokenizer.cache_clear()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(HostError, match="the package tokenizers is not installed") as caught:
        load_tokenizer(byte_folder)
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"{}", "Model missing. at line 1 column 2"),
        (b"not JSON", "expected ident at line 1 column 2"),
        (b"[]", "invalid type: sequence"),
        (b"\xff", "expected value at line 1 column 1"),
        (b'{"model": {"type": "BPE"}}', "Missing vocab/merges"),
        (b'{"model": {"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "a"}}', "at line 1 column"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_tokenizer(str(tmp_path))
    assert caught.value.message.startswith(f"{file}: this tokenizer cannot be read: ")
    assert reason in caught.value.message
    assert "buffer" not in caught.value.message


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, byte_folder: str) -> None:
    whole = (Path(byte_folder) / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"this tokenizer cannot be read: EOF while parsing .* at line"):
        load_tokenizer(str(tmp_path))


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "tokenizer.json").touch()
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match=r"tokenizer\.json: this tokenizer cannot be read: Permission denied"):
        load_tokenizer(str(tmp_path))
