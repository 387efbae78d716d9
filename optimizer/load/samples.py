"""The requests of one window as a file, for whoever wants to look at them with other tools."""

from __future__ import annotations

import csv
import gzip
import io
import math
from pathlib import Path

from optimizer.core.measurement import LoadResult

COLUMNS = (
    "request",
    "scheduled_s",
    "sent_s",
    "first_token_s",
    "last_token_s",
    "prompt_tokens",
    "output_tokens",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "error",
    "queue_ms",
    "session",
    "turn",
)
"""Seconds count from the start of the window, latencies from `scheduled_s`; `queue_ms` is the part of them that passed
before it left. An event that never came is empty, and so is the session of a request that stands alone. Sessions named
ramp-N began before the window."""


def write_samples(path: Path, result: LoadResult) -> None:
    """Writes a gzipped CSV with one row per counted request, in one step: the file is whole or absent.

    Args:
        path: Where to; its folder exists. By custom it ends in `.csv.gz`.
        result: What to write.

    Raises:
        OSError: It cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(result, number) for number in range(len(result.errors)))
    draft = path.with_name(path.name + ".tmp")
    # Without the time in its header, equal samples give equal files.
    draft.write_bytes(gzip.compress(text.getvalue().encode("utf-8"), mtime=0))
    draft.replace(path)


def _row(result: LoadResult, number: int) -> list[str | int]:
    scheduled_s = float(result.scheduled_s[number])
    first_s = float(result.first_token_s[number])
    last_s = float(result.last_token_s[number])
    tokens = int(result.output_tokens[number])
    tpot_s = (last_s - first_s) / (tokens - 1) if tokens > 1 else math.nan
    return [
        number,
        *(
            _seconds(float(at[number]) - result.window_start_s)
            for at in (result.scheduled_s, result.sent_s, result.first_token_s, result.last_token_s)
        ),
        int(result.prompt_tokens[number]),
        tokens,
        *(_milliseconds(latency_s) for latency_s in (first_s - scheduled_s, tpot_s, last_s - scheduled_s)),
        result.errors[number] or "",
        _milliseconds(float(result.sent_s[number]) - scheduled_s),
        *_place(result, number),
    ]


def _place(result: LoadResult, number: int) -> tuple[str | int, int]:
    """Session and turn."""
    session = int(result.sessions[number]) if result.sessions.size else -1
    if session == -1:
        return "", 0
    return session if session >= 0 else f"ramp-{-2 - session}", int(result.turns[number])


def _seconds(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6f}"


def _milliseconds(value_s: float) -> str:
    return "" if math.isnan(value_s) else f"{value_s * 1000.0:.3f}"
