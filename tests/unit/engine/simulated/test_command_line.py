"""Flags are read as `vllm serve` reads them."""

from __future__ import annotations

import pytest

from optimizer.engine.simulated.command_line import parse_command_line


def flags(*words):
    return dict(parse_command_line(words).flags)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max_num_seqs", "8"], {"max-num-seqs": 8}),
        (["--max-num-batched-tokens=8k"], {"max-num-batched-tokens": 8000}),
        (["--max-model-len", "8K"], {"max-model-len": 8192}),
        (["--max-model-len", "auto"], {"max-model-len": -1}),
        (["--kv-cache-memory-bytes", "1.5G"], {"kv-cache-memory-bytes": 3 * 2**29}),
        (["--gpu-memory-util", "0.5"], {"gpu-memory-utilization": 0.5}),
        (["--enable-prefix-caching"], {"enable-prefix-caching": True}),
        (["--no-enable-prefix-caching"], {"enable-prefix-caching": False}),
        (["--disable-prefix-caching"], {"enable-prefix-caching": False}),
        (["--disable-log-stats"], {"disable-log-stats": True}),
        (["--no-disable-log-stats"], {"disable-log-stats": False}),
        (
            ["-tp", "2", "-O3", "--enforce-eager"],
            {"tensor-parallel-size": "2", "optimization-level": "3", "enforce-eager": True},
        ),
        (["--cudagraph-capture-sizes", "1", "2"], {"cudagraph-capture-sizes": ["1", "2"]}),
        (["--speculative-config.num_speculative_tokens", "4"], {"speculative-config.num_speculative_tokens": "4"}),
        (["-cc.cudagraph_mode=FULL"], {"compilation-config.cudagraph_mode": "FULL"}),
        (["serve", "some/model"], {}),
    ],
)
def test_spellings(words, expected):
    assert flags(*words) == expected


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--foo", "1"], "error: unrecognized arguments: --foo"),
        (["--swap-space", "4"], "error: unrecognized arguments: --swap-space"),
        (["--max-num-seqs", "many"], "argument --max-num-seqs: invalid int value: 'many'"),
        (["--max-num-batched-tokens", "8x"], "argument --max-num-batched-tokens: invalid size: '8x'"),
        (["--max-num", "4"], "error: ambiguous option: --max-num could match"),
    ],
)
def test_what_vllm_refuses_ends_with_2(words, complaint, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_command_line(words)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_help_names_every_fault_and_hides_ignored_flags(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_command_line(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "hang_health_200" in text
    assert "--max-num-seqs N" in text
    assert "--tensor-parallel-size" not in text
    assert max(map(len, text.splitlines())) <= 120
