"""Compare the KV pools that an engine reported with what the memory account foretold, and with a constant guess.

Usage: python tests/data/h200/compare.py [ROWS.jsonl] [--model FOLDER]

Three predictions stand beside each reported pool, in GiB: before any start, after the first row alone, and a guess
that takes the first row's remainder for a constant: utilization x total - weights - what the first start took besides.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.core.engine_config import FlagValue
from optimizer.engine.memory import Calibration, MemoryAccount, MemoryObservation, MemoryPrediction

HERE = Path(__file__).parent
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row; pools in GiB, and whether the intervals hold what was reported."""

    setting: dict[str, FlagValue]
    reported: float
    before: float
    after_one: float
    constant: float
    before_holds: bool
    after_one_holds: bool


def observation(row: dict[str, Any]) -> MemoryObservation:
    """What the engine of a row said, as a study would record it."""
    return MemoryObservation(
        row["setting"],
        {},
        requested_bytes=_bytes(row.get("requested_memory_gib")),
        pool_tokens=row["kv_cache_tokens"],
        pool_bytes=_bytes(row.get("available_kv_gib")),
        weights_bytes=_bytes(row.get("model_loading_gib")),
    )


def compare(
    account: MemoryAccount, rows: Sequence[dict[str, Any]], device_bytes: int | None = None
) -> list[Comparison]:
    """Each row against the predictions; the first row that reported a pool is the one start that corrects them."""
    usable = [row for row in rows if row["kv_cache_tokens"] is not None]
    if not usable:
        return []
    first = usable[0]
    device_bytes = first["device_bytes"] if device_bytes is None else device_bytes
    calibration = account.calibrate([observation(first)], device_bytes=device_bytes)

    def predicted(row: dict[str, Any], known: Calibration | None) -> MemoryPrediction:
        return account.predict(row["setting"], {}, device_bytes=device_bytes, calibration=known)

    besides = _share(first, device_bytes) - _pool(first, predicted(first, None))
    comparisons = []
    for row in usable:
        before, after = predicted(row, None), predicted(row, calibration)
        pool = _pool(row, before)
        comparisons.append(
            Comparison(
                setting=row["setting"],
                reported=pool / GIB,
                before=before.pool_bytes.mid / GIB,
                after_one=after.pool_bytes.mid / GIB,
                constant=(_share(row, device_bytes) - besides) / GIB,
                before_holds=before.pool_bytes.low <= pool <= before.pool_bytes.high,
                after_one_holds=after.pool_bytes.low <= pool <= after.pool_bytes.high,
            )
        )
    return comparisons


def table(comparisons: Sequence[Comparison]) -> str:
    """The comparisons as a Markdown table, and the largest error of each column."""
    lines = [
        "| batched tokens | seqs | utilization | reported GiB | before any start | after one start | constant guess |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in comparisons:
        setting = row.setting
        lines.append(
            f"| {setting['max-num-batched-tokens']} | {setting['max-num-seqs']} "
            f"| {setting['gpu-memory-utilization']} | {row.reported:.2f} | {_with_error(row.before, row.reported)} "
            f"| {_with_error(row.after_one, row.reported)} | {_with_error(row.constant, row.reported)} |"
        )
    worst = [
        max(abs(getattr(row, name) - row.reported) for row in comparisons)
        for name in ("before", "after_one", "constant")
    ]
    lines.append(f"| largest error | | | | {worst[0]:.2f} | {worst[1]:.2f} | {worst[2]:.2f} |")
    held = [sum(getattr(row, name) for row in comparisons) for name in ("before_holds", "after_one_holds")]
    lines.append(f"| interval holds | | | | {held[0]} of {len(comparisons)} | {held[1]} of {len(comparisons)} | |")
    return "\n".join(lines)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The launches of a file, in the order they were made."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def device_bytes_of(file: Path) -> int | None:
    """What the engine's log gave as the card's total, which NVML counts otherwise; None where it was not noted."""
    gib = json.loads(file.with_suffix(".facts.json").read_text(encoding="utf-8")).get("engine_device_gib")
    return None if gib is None else round(gib * GIB)


def _pool(row: dict[str, Any], prediction: MemoryPrediction) -> float:
    """Tokens are exact to a block, the log's GiB to 0.01."""
    return float(row["kv_cache_tokens"]) * prediction.kv_bytes_per_token


def _share(row: dict[str, Any], device_bytes: int) -> float:
    return float(row["setting"]["gpu-memory-utilization"]) * device_bytes


def _with_error(predicted: float, reported: float) -> str:
    return f"{predicted:.2f} ({predicted - reported:+.2f})"


def _bytes(gib: float | None) -> float | None:
    return None if gib is None else gib * GIB


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare reported KV pools with predicted ones.")
    parser.add_argument("rows", nargs="?", type=Path, default=HERE / "kv_pool.jsonl")
    parser.add_argument("--model", type=Path, default=HERE, help="folder with the model's config.json")
    options = parser.parse_args()
    account = MemoryAccount.of_folder(options.model, "gpu")
    print(table(compare(account, read_rows(options.rows), device_bytes_of(options.rows))))
