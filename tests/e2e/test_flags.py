"""Flags held against the parser of the vLLM that is installed here. No engine is started."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimizer.config import built_in_spaces
from optimizer.config.flag_check import FlagChecker
from optimizer.config.study_flags import study_flag_problems
from optimizer.engine.vllm.catalogue import FlagCatalogue
from optimizer.engine.vllm.catalogue_cache import load_catalogue
from optimizer.engine.vllm.installation import find_vllm
from optimizer.engine.vllm.old_flags import OLD_FLAGS
from tests.flag_catalogues import TEXTS_COMMAND, TODAY_IN_TEXTS, has_setting

LIMIT_S = 300.0
"""For a process that imports vLLM."""

# The first test waits for the fixture that reads the flags, too.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * LIMIT_S)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of our own: the flags are read for real, once."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def installed(cache: Path) -> FlagCatalogue:
    """The flags of the vLLM that is installed here."""
    return load_catalogue(find_vllm(None), notice=lambda _text: None)


@pytest.fixture(scope="module")
def checker(installed: FlagCatalogue) -> FlagChecker:
    return FlagChecker(installed, f"vLLM {installed.version}")


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optimizer", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=env)


def test_what_is_known_of_a_few_flags(installed):
    assert len(installed.flags) > 200
    assert installed.flag("max-num-batched-tokens").kind == "size"
    assert "fp8" in installed.flag("kv-cache-dtype").choices
    assert installed.flag("gpu-memory-utilization").default == 0.92
    assert "num_speculative_tokens" in installed.flag("speculative-config").keys
    assert "fuse_norm_quant" in installed.flag("compilation-config").keys["pass_config"].keys
    assert installed.flag("max-num-seqs").help
    assert "VLLM_LOGGING_LEVEL" in installed.variables


def test_every_old_flag_is_gone_and_every_replacement_is_there(installed):
    gone = [flag for flag in OLD_FLAGS.values() if flag.back_in is None or installed.version < flag.back_in]
    assert [flag.name for flag in gone if installed.spelled(f"--{flag.name}") is not None] == []
    assert [name for flag in gone for name in flag.today if not has_setting(installed, name)] == []


@pytest.mark.parametrize("space", built_in_spaces(), ids=lambda space: space.name)
def test_built_in_spaces_have_no_problem(checker, space):
    assert study_flag_problems(checker, space) == []


TAKEN = (
    "--max-num-seqs 64 --max-model-len 8k --no-enable-prefix-caching -tp 2 -O3",
    "--max-model-len auto --seed 007 --quantization None --gpu_memory_utilization .9",
    "--speculative-config.method ngram --speculative-config.num_speculative_tokens 4",
    "--cudagraph-capture-sizes 1 2 4 --max-num-batched-tokens 2K --limit-mm-per-prompt.image 2",
    "-cc.cudagraph_mode FULL --compilation-config.pass_config.fuse_norm_quant true --eplb-config.step_interval 1k",
)
REFUSED = (
    "--max-num-seqs 8k",
    "--max-num-seqs 0.5",
    "--max-num-seqs",
    "--gpu-memory-utilization high",
    "--max-num-batched-tokens lots",
    "--kv-cache-dtype fp9",
    "--dtype bf16",
    "--cudagraph-capture-sizes 1 two",
    "--speculative-config {a:1}",
    "--compilation-config.cudagraph_mod FULL",
    "--compilation-config.pass_config.fuse_norm_qant true",
    "--compilation-config.pass_config.fuse_norm_quant maybe",
    "--eplb-config.step_interval soon",
    "--swap-space 4",
    "--bogus",
)
_ASK_THE_PARSER = """
import contextlib, io, json, shlex, sys
from optimizer.engine.vllm.inside.flag_catalogue import _server_parser
with contextlib.redirect_stdout(sys.stderr):
    parser, verdicts = _server_parser(), []
    for words in json.load(sys.stdin):
        try:
            parser.parse_args(shlex.split(words))
            verdicts.append(True)
        except SystemExit:
            verdicts.append(False)
print(json.dumps(verdicts))
"""


def test_we_and_vllms_own_parser_are_of_one_mind(checker):
    asked = subprocess.run(
        [sys.executable, "-c", _ASK_THE_PARSER],
        input=json.dumps([*TAKEN, *REFUSED]),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    theirs = dict(zip([*TAKEN, *REFUSED], json.loads(asked.stdout.splitlines()[-1]), strict=True))
    ours = {words: checker.command(f"vllm serve m {words}", where="command") == [] for words in theirs}
    assert ours == theirs
    assert theirs == {**dict.fromkeys(TAKEN, True), **dict.fromkeys(REFUSED, False)}


def test_check_names_every_flag_of_the_texts(cache, installed):
    done = run("check", "--json", "--", *shlex.split(TEXTS_COMMAND))
    wrong = [word for word in TEXTS_COMMAND.split() if word.startswith("--") and word not in TODAY_IN_TEXTS]
    told = json.loads(done.stdout)
    assert done.returncode == 2, done.stderr
    assert [problem["flag"] for problem in told["problems"]] == wrong
    assert all(problem["instead"] for problem in told["problems"])


def test_a_run_with_a_wrong_flag_starts_nothing(cache, installed, tmp_path, monkeypatch, project_root):
    monkeypatch.chdir(tmp_path)
    done = run("run", "--space", "tiny-cpu", "--baseline", "vllm serve tiny-kv --max-num-seq 8 --swap-space 4")
    assert done.returncode == 2
    assert "--baseline: --max-num-seq: vLLM" in done.stderr
    assert "instead: --kv-offloading-size 4" in done.stderr
    assert not (tmp_path / "autotune").exists()
