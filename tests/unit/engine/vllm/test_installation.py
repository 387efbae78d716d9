"""vLLM is found by asking a Python for it; whatever is no such Python ends in one clear message."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from pathlib import Path

import pytest

from optimizer.core.errors import HostError
from optimizer.engine.vllm import installation
from optimizer.engine.vllm.installation import find_vllm


@pytest.fixture
def program(tmp_path: Path):
    """Writes an executable and returns its path."""

    def write(text: str) -> str:
        file = tmp_path / "python"
        file.write_text(text)
        file.chmod(0o755)
        return str(file)

    return write


def refusal(python: str) -> HostError:
    with pytest.raises(HostError) as refused:
        find_vllm(python)
    assert f"--engine-python: {python}" in refused.value.message or f"{python} (--engine-python)" in str(refused.value)
    assert refused.value.hint
    return refused.value


def test_a_program_that_does_not_exist(tmp_path):
    assert "is not an executable program" in refusal(str(tmp_path / "absent")).message


def test_a_file_that_is_not_executable(tmp_path):
    file = tmp_path / "python"
    file.write_text("#!/bin/sh\n")
    assert "is not an executable program" in refusal(str(file)).message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no program at all", "Exec format error"),
        ("#!/bin/sh\nexit 0\n", "no answer, exit code 0"),
        ("#!/bin/sh\necho hello\n", "no answer, exit code 0"),
        ("#!/bin/sh\necho first >&2\necho 'broken: libpython' >&2\nexit 127\n", "broken: libpython"),
    ],
)
def test_a_program_that_is_no_python(program, text, why):
    error = refusal(program(text))
    assert "does not run as Python" in error.message
    assert why in error.message


def test_a_python_that_never_answers(monkeypatch, program):
    monkeypatch.setattr(installation, "_ANSWER_LIMIT_S", 0.05)
    assert "timed out" in refusal(program("#!/bin/sh\nexec sleep 60\n")).message


def test_a_python_without_vllm(program):
    error = refusal(program(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n'))
    assert "vLLM is not installed" in error.message
    assert "vllm-autotune[vllm]" in str(error.hint)
    assert "--engine-python" in str(error.hint)


def test_a_python_that_greets_before_it_answers(program, tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "vllm-1.2.3.dist-info").mkdir()
    (tmp_path / "vllm-1.2.3.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 1.2.3\n")
    python = program(f'#!/bin/sh\necho welcome\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" -S "$@"\n')
    found = find_vllm(python)
    assert (found.version, found.torch_version, found.python_version) == ("1.2.3", "unknown", platform.python_version())


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed in this environment")
def test_this_environment():
    found = find_vllm(None)
    assert found.version.startswith("0.32.0")
    assert found.torch_version == importlib.metadata.version("torch")
    assert found.python == sys.executable
