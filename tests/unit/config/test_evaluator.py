"""The command of an external evaluator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from optimizer.config.evaluator import DEFAULT_TIMEOUT_S, parse_evaluator
from optimizer.core.errors import InputError


def test_words_are_split_as_a_shell_would_and_no_shell_is_asked():
    evaluator = parse_evaluator(f"{sys.executable} -c 'print(1); x' \"a b\" $HOME | cat")
    assert evaluator.words == (sys.executable, "-c", "print(1); x", "a b", "$HOME", "|", "cat")
    assert evaluator.timeout_s == DEFAULT_TIMEOUT_S
    assert parse_evaluator("true", timeout_s=3.0).timeout_s == 3.0


def test_quotes_and_spaces_do_not_make_another_evaluator():
    assert parse_evaluator("echo  'a' \"b\"").command == parse_evaluator("echo a b").command


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no command"),
        ("   ", "there is no command"),
        ("''", "there is no command"),
        ("echo 'a", "No closing quotation"),
        ("echo \0", "NUL"),
        ("no-such-program-here", "no program 'no-such-program-here' on PATH"),
        ("./missing.sh", "there is no program './missing.sh'"),
        ("/", "is a folder"),
        ("echo --api-key abcdef", "api-key looks like a secret"),
        ("echo --api-key=abcdef", "api-key looks like a secret"),
        ("env HF_TOKEN=abc true", "HF_TOKEN looks like a secret"),
        ("echo https://ann:pw@host/", "looks like a secret"),
    ],
)
def test_what_cannot_be_started_or_recorded_is_refused(text, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_evaluator(text)
    assert caught.value.hint
    assert "abcdef" not in caught.value.message
    assert "pw" not in caught.value.message


def test_a_script_that_may_not_be_executed_is_refused_with_what_to_do(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("#!/bin/sh\n")
    with pytest.raises(InputError, match=r"'\./script\.py' cannot be executed") as caught:
        parse_evaluator("./script.py")
    assert "chmod +x" in caught.value.hint
    with pytest.raises(InputError, match=r"there is a file script\.py here") as caught:
        parse_evaluator("script.py")
    assert caught.value.hint == "write ./script.py"
    Path("script.py").chmod(0o700)
    assert parse_evaluator("./script.py x").words == ("./script.py", "x")
