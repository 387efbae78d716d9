"""Reading a vLLM's flags with its own Python, and keeping them: on a stand-in that counts how often it is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from optimizer.core.errors import HostError
from optimizer.engine.vllm.catalogue import FlagCatalogue
from optimizer.engine.vllm.catalogue_cache import cache_folder, cached_catalogue, load_catalogue
from optimizer.engine.vllm.installation import VllmInstallation

_STAND_IN = {
    "__init__.py": "__version__ = '9.9.9'\nprint('vLLM greets on stdout')\n",
    "envs.py": "environment_variables = {'VLLM_A': None, 'HOME': None}\n",
    "config/__init__.py": "",
    "utils/__init__.py": "",
    "utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
    "platforms/__init__.py": "class P:\n    device_type = 'cpu'\ncurrent_platform = P()\n",
    "entrypoints/__init__.py": "",
    "entrypoints/openai/__init__.py": "",
    "entrypoints/openai/cli_args.py": (
        "import pathlib\n"
        "def make_arg_parser(parser):\n"
        "    with open(pathlib.Path(__file__).parents[3] / 'reads', 'a') as file: file.write('x')\n"
        "    parser.add_argument('--max-num-seqs', type=int)\n"
        "    return parser\n"
    ),
}


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package `vllm` that the script imports, and a cache of its own."""
    for name, text in _STAND_IN.items():
        file = tmp_path / "site" / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "site"


def installation(**changes: str) -> VllmInstallation:
    known = {"python": sys.executable, "version": "9.9.9", "torch_version": "2", "python_version": "3", "stamp": "one"}
    return VllmInstallation(**{**known, **changes})


def reads(stand_in: Path) -> int:
    file = stand_in / "reads"
    return len(file.read_text()) if file.exists() else 0


def load(told: list[str] | None = None, **changes: str) -> FlagCatalogue:
    return load_catalogue(installation(**changes), notice=(told if told is not None else []).append)


def test_flags_are_read_once_and_kept(stand_in):
    told: list[str] = []
    first = load(told)
    assert first.version == "9.9.9"
    assert first.names == {"max-num-seqs"}
    assert first.variables == {"VLLM_A"}
    assert "reading the flags of vLLM 9.9.9" in told[0]
    assert load(told) == first
    assert (reads(stand_in), len(told)) == (1, 1)


@pytest.mark.parametrize("change", [{"version": "9.9.10"}, {"stamp": "two"}])
def test_another_version_or_installation_is_read_anew(stand_in, change):
    load()
    load(**change)
    assert reads(stand_in) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}', b"\xff\xfe", b'{"flags": [], "extra": 1}'])
def test_a_corrupt_cache_is_read_anew(stand_in, content):
    load()
    (file,) = cache_folder().iterdir()
    file.write_bytes(content)
    assert cached_catalogue(installation()) is None
    assert load().names == {"max-num-seqs"}
    assert reads(stand_in) == 2
    load()
    assert reads(stand_in) == 2, "what was corrupt has been replaced"


def test_a_cache_that_cannot_be_written_is_done_without(stand_in, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    told: list[str] = []
    assert load(told).names == {"max-num-seqs"}
    assert "read anew each time: cannot write" in told[1]


def test_the_cache_lies_where_the_desktop_standard_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "vllm-autotune"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "vllm-autotune"


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("__init__.py", "raise ImportError('libcuda.so.1: no such file')", "libcuda.so.1: no such file"),
        ("entrypoints/openai/cli_args.py", "import not_there", "No module named 'not_there'"),
        ("entrypoints/openai/cli_args.py", None, "no parser of the server's flags"),
    ],
)
def test_a_vllm_that_cannot_be_read_is_the_hosts_fault(stand_in, file, text, said):
    path = stand_in / "vllm" / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(HostError) as refused:
        load()
    assert said in refused.value.message
    assert refused.value.hint
    assert not cache_folder().exists()


def test_a_build_for_gpus_without_one_shows_its_flags_as_on_a_cpu(stand_in):
    (stand_in / "vllm/platforms/__init__.py").write_text(
        "class P:\n    device_type = ''\n_current_platform = P()\n"
        "def __getattr__(name):\n"
        "    if name == 'current_platform': return _current_platform\n"
        "    raise AttributeError(name)\n"
    )
    (stand_in / "vllm/platforms/cpu.py").write_text("class CpuPlatform:\n    device_type = 'cpu'\n")
    parser = stand_in / "vllm/entrypoints/openai/cli_args.py"
    guard = "    from vllm.platforms import current_platform\n    assert current_platform.device_type == 'cpu'\n"
    parser.write_text(parser.read_text().replace("(parser):\n", "(parser):\n" + guard))
    assert load().names == {"max-num-seqs"}
