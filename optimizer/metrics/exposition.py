"""One reading of the engine's /metrics page: the few figures wanted, and nothing of the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from optimizer.metrics.vllm_names import CACHE_INFO, COUNTERS, GAUGES, SHARES, SPLIT, WANTED


class Unreadable(Exception):
    """There is no page, or one that is not in Prometheus' text format; the text says what came instead."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one page said.

    Attributes:
        values: Our name of a counter or gauge to its value over all engines; absent where the page lacks it.
        kv_cache_tokens: Size of the KV cache of all engines together, or None when the page does not tell.
        kv_block_tokens: Tokens of one KV block, likewise.
    """

    values: Mapping[str, float]
    kv_cache_tokens: float | None
    kv_block_tokens: float | None = None


def parse_exposition(text: str) -> Reading:
    """Reads a page in Prometheus' text format.

    Raises:
        Unreadable: It is something else, or a wanted line is garbled.
    """
    # The page holds a thousand histogram lines; parsing them would hold up the event loop that stamps tokens.
    wanted = [line for line in text.splitlines() if line.partition("{")[0].split(" ")[0] in WANTED]
    if not wanted and not any(line.startswith(("# HELP", "# TYPE")) for line in text.splitlines()):
        raise Unreadable(f"no metrics page: {' '.join(text[:200].split())!r}")
    try:
        families = list(text_string_to_metric_families("\n".join(wanted) + "\n"))
    except (ValueError, IndexError, KeyError) as error:
        raise Unreadable(f"a garbled metrics page: {error}") from error
    return _to_reading(families)


def _to_reading(families: Iterable[Metric]) -> Reading:
    found: dict[str, list[float]] = {}
    splits: dict[str, list[float]] = {}
    pools: list[float | None] = []
    block: float | None = None
    for family in families:
        for sample in family.samples:
            if sample.name == CACHE_INFO:
                pools.append(_pool_tokens(sample.labels))
                block = _number(sample.labels.get("block_size"))
            else:
                found.setdefault(sample.name, []).append(float(sample.value))
            for key, (name, label, wanted) in SPLIT.items():
                if sample.name == name and sample.labels.get(label) in wanted:
                    splits.setdefault(key, []).append(float(sample.value))
    values = {key: sum(per_engine) for key, per_engine in _named(COUNTERS | GAUGES, found)}
    values |= {key: sum(per_engine) / len(per_engine) for key, per_engine in _named(SHARES, found)}
    values |= {key: sum(parts) for key, parts in splits.items()}
    known = [pool for pool in pools if pool is not None]
    return Reading(values, sum(known) if known else None, block)


def _named(table: Mapping[str, tuple[str, ...]], found: Mapping[str, list[float]]) -> Iterable[tuple[str, list[float]]]:
    """Our name and the values per engine, for each entry of `table` that the page holds under any spelling."""
    for key, spellings in table.items():
        per_engine = next((found[name] for name in spellings if name in found), None)
        if per_engine is not None:
            yield key, per_engine


def _pool_tokens(labels: Mapping[str, str]) -> float | None:
    """Tokens that fit into one engine's KV cache: reported as such, or else as blocks of a given size."""
    tokens = _number(labels.get("kv_cache_size_tokens"))
    if tokens is not None:
        return tokens
    blocks, block_size = _number(labels.get("num_gpu_blocks")), _number(labels.get("block_size"))
    return None if blocks is None or block_size is None else blocks * block_size


def _number(text: str | None) -> float | None:
    """A whole number above zero, or None (vLLM writes `None` for what it has not set)."""
    return float(text) if text is not None and text.isdecimal() and int(text) > 0 else None
