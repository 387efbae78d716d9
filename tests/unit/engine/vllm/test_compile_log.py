"""Lines that say that vLLM compiles, as its log grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.engine.vllm.compile_log import CompileWatch

QUIET = "(APIServer pid=7) INFO 11-29 22:08:29 [loggers.py:1] Engine 000: Avg generation throughput: 55.0 tokens/s\n"


@pytest.mark.parametrize(
    "line",
    [
        "Triton kernel JIT compilation during inference: fused_moe. This causes a latency spike; warm it up",
        "Dynamo bytecode transform time: 4.61 s",
        "Compiling a graph for compile range (1, 8192) takes 9.81 s",
        "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 1.2 s",
        "torch.compile took 15.43 s in total",
    ],
)
def test_each_is_told_once(tmp_path: Path, line: str) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"{line}\n{QUIET}")
    watch = CompileWatch(log)
    assert not watch.compiled(), "what was there before the load does not count"
    with log.open("a") as file:
        file.write(QUIET + line[:20])
        file.flush()
        assert not watch.compiled()
        file.write(line[20:] + "\n" + QUIET)
    assert watch.compiled()
    assert not watch.compiled()


def test_no_log_compiles_nothing(tmp_path: Path) -> None:
    assert not CompileWatch(tmp_path / "none.log").compiled()
