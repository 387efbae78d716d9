"""The comparison of reported KV pools with predicted ones, and the plan of what is measured."""

import importlib.util
import json
import sys

import pytest

from optimizer.engine.memory import MemoryAccount

GIB = 1024**3


@pytest.fixture(scope="module")
def folder(project_root):
    return project_root / "tests/data/h200"


def load(folder, name):
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up by name while it is made.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def row(tokens, seqs, share, pool_tokens, **more):
    setting = {"max-num-batched-tokens": tokens, "max-num-seqs": seqs, "gpu-memory-utilization": share}
    return {"setting": setting, "kv_cache_tokens": pool_tokens, "device_bytes": int(139.8 * GIB), **more}


def test_the_comparison_shows_what_a_constant_guess_misses(folder):
    compare = load(folder, "compare")
    account = MemoryAccount.of_folder(folder, "gpu")
    rows = [
        row(8192, 1024, 0.92, 545_712, model_loading_gib=27.52),
        row(8192, 1024, 0.5, 225_000, failure=None),
        row(2048, 32, 0.92, None, failure="engine_crash: no"),
    ]
    first, second = compare.compare(account, rows)
    assert first.after_one == pytest.approx(first.reported, abs=0.1)
    assert first.constant == pytest.approx(first.reported)
    assert second.reported == pytest.approx(225_000 * 192 * 1024 / GIB)
    text = compare.table([first, second])
    assert "| 8192 | 1024 | 0.92 | 99.92 |" in text
    assert text.splitlines()[-2].startswith("| largest error |")
    assert compare.compare(account, [rows[2]]) == []


def test_each_pair_is_measured_at_all_utilizations_before_the_next_is_compiled(folder, tmp_path):
    meter = load(folder, "measure_kv_pool")
    plan = meter.planned()
    pairs = [(s["max-num-batched-tokens"], s["max-num-seqs"]) for s in plan]
    assert len(plan) == 27
    assert len(set(pairs)) == 9
    assert pairs == [pair for pair in dict.fromkeys(pairs) for _ in range(3)]
    out = tmp_path / "rows.jsonl"
    out.write_text(json.dumps({"setting": plan[0]}) + "\n")
    assert meter.still_to_do(out) == plan[1:]


def test_measured_pools_are_foretold_within_a_gib_after_one_start(folder):
    rows_file = folder / "kv_pool.jsonl"
    if not rows_file.exists():
        pytest.skip("nothing was measured on a GPU yet")
    compare = load(folder, "compare")
    rows = compare.compare(MemoryAccount.of_folder(folder, "gpu"), compare.read_rows(rows_file))
    assert len(rows) >= 6
    assert max(abs(row.after_one - row.reported) for row in rows) < 1.0
