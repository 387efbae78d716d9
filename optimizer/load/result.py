"""From traces of single requests to the arrays of a `LoadResult`, again and again while the load runs."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from optimizer.core.measurement import UNFINISHED, FloatArray, IntArray, LoadResult
from optimizer.load.client.trace import RequestTrace
from optimizer.load.columns import Growing

_NEVER = float("nan")
_SCHEDULED, _READY, _SENT, _FIRST, _LAST, _ENDED = range(6)
_PROMPT, _OUTPUT, _SESSION, _TURN, _GAPS_AT = range(5)


class WindowRecord:
    """What is known of the requests of a window that is open. Each look costs what is new since the last.

    Of a request that was cancelled before the engine told its tokens (no usage on the chunks) none are counted.

    Args:
        traces: The requests; whoever sends them adds to it.
        start_s: When the window opened.
    """

    def __init__(self, traces: Sequence[RequestTrace], start_s: float) -> None:
        self._traces = traces
        self._start_s = start_s
        self._seen = 0
        self._rows: list[RequestTrace] = []
        self._open: list[int] = []
        self._chunks_seen: dict[int, int] = {}
        self._times = Growing(np.float64, 6)
        self._counts = Growing(np.int64, 5)
        self._errors: list[str | None] = []
        self._gaps = Growing(np.float64)
        self._bins = Growing(np.int64)
        self._window_tokens = 0

    def look(self, now_s: float, end_s: float | None = None, **facts: Any) -> LoadResult:
        """The requests scheduled in the window, and the tokens of all requests that arrived therein.

        Args:
            now_s: When this is: everything before it is known.
            end_s: When the window closed, or None while it is open. Only the last look may have one.
            facts: Further fields of the result.
        """
        until_s, cut_s = (now_s, math.inf) if end_s is None else (end_s, end_s)
        self._take_new(cut_s)
        self._update(cut_s)
        times, counts = self._times.values, self._counts.values
        counted = (times[:, _SCHEDULED] >= self._start_s) & (times[:, _SCHEDULED] < until_s)
        # Where several processes send, requests do not come here in the order of their schedule.
        rows = np.flatnonzero(counted)
        rows = rows[np.argsort(times[rows, _SCHEDULED], kind="stable")]
        seconds = int(until_s - self._start_s)
        self._bins.grow_to(seconds)
        ok = np.array([error is None for error in self._errors], dtype=np.bool_)
        ended = (times[:, _ENDED] >= self._start_s) & (times[:, _ENDED] < until_s)
        never_sent = np.isnan(times[:, _SENT]) & ~np.isnan(times[:, _ENDED])
        return LoadResult(
            window_start_s=self._start_s,
            window_s=until_s - self._start_s,
            scheduled_s=times[rows, _SCHEDULED],
            sent_s=times[rows, _SENT],
            first_token_s=times[rows, _FIRST],
            last_token_s=times[rows, _LAST],
            prompt_tokens=counts[rows, _PROMPT],
            output_tokens=counts[rows, _OUTPUT],
            errors=tuple(self._errors[row] for row in rows),
            itl_s=self._gaps.values,
            gaps_at=counts[rows, _GAPS_AT],
            window_output_tokens=self._window_tokens,
            window_requests=int(np.count_nonzero(ok & ended)),
            ready_s=times[rows, _READY],
            sessions=counts[rows, _SESSION],
            turns=counts[rows, _TURN],
            tokens_per_s_bins=self._bins.values[:seconds].copy(),
            in_flight_per_s=self._in_flight(seconds),
            too_long=int(np.count_nonzero(never_sent[rows])),
            now_s=now_s,
            **facts,
        )

    def _take_new(self, cut_s: float) -> None:
        """Makes rows of the traces that are new and have to do with the window."""
        new = [
            trace
            for trace in self._traces[self._seen :]
            if trace.scheduled_s < cut_s and (trace.ended_s is None or trace.ended_s >= self._start_s)
        ]
        self._seen = len(self._traces)
        first = len(self._rows)
        self._rows += new
        self._open += range(first, len(self._rows))
        self._times.extend(np.full((len(new), 6), _NEVER))
        self._counts.extend(np.zeros((len(new), 5), dtype=np.int64))
        self._errors += [UNFINISHED] * len(new)

    def _update(self, cut_s: float) -> None:
        """Brings the rows of requests up to date that had not ended at the last look."""
        times_s, tokens = array("d"), array("i")
        still_open = []
        for row in self._open:
            trace = self._rows[row]
            arrived, seen = trace.arrivals, self._chunks_seen.pop(row, 0)
            times_s.extend(arrived.times_s[seen:])
            tokens.extend(arrived.tokens[seen:])
            self._write(row, trace)
            if trace.ended_s is None:
                self._chunks_seen[row] = len(arrived)
                still_open.append(row)
            elif trace.error is None and self._start_s <= trace.scheduled_s < cut_s:
                self._counts.values[row, _GAPS_AT] = self._gaps.values.size
                self._gaps.extend(_gaps_s(trace))
        self._open = still_open
        self._count_tokens(np.array(times_s), np.array(tokens, dtype=np.int64), cut_s)

    def _write(self, row: int, trace: RequestTrace) -> None:
        arrived, ended = trace.arrivals.times_s, trace.ended_s is not None
        error = trace.error if ended else UNFINISHED
        first_s, last_s = (arrived[0], arrived[-1]) if arrived else (_NEVER, _NEVER)
        times = (trace.scheduled_s, trace.ready_s, trace.sent_s, first_s, last_s, trace.ended_s)
        self._times.values[row] = [_NEVER if time_s is None else time_s for time_s in times]
        if error == UNFINISHED:
            self._times.values[row, _LAST] = _NEVER
        session = -1 if trace.session is None else trace.session
        self._counts.values[row, :_GAPS_AT] = (trace.prompt_tokens, trace.output_tokens, session, trace.turn)
        self._errors[row] = error

    def _count_tokens(self, times_s: FloatArray, tokens: IntArray, cut_s: float) -> None:
        inside = (times_s >= self._start_s) & (times_s < cut_s)
        which = np.floor(times_s[inside] - self._start_s).astype(np.int64)
        per_s = np.bincount(which, weights=tokens[inside]).astype(np.int64)
        self._bins.grow_to(per_s.size)
        self._bins.values[: per_s.size] += per_s
        self._window_tokens += int(tokens[inside].sum())

    def _in_flight(self, seconds: int) -> IntArray:
        """Requests that were due and had not ended at the end of each whole second."""
        times = self._times.values
        ended_s = times[:, _ENDED][~np.isnan(times[:, _ENDED])]
        marks = self._start_s + np.arange(1, seconds + 1)
        began = np.searchsorted(np.sort(times[:, _SCHEDULED]), marks, side="right")
        in_flight: IntArray = (began - np.searchsorted(np.sort(ended_s), marks, side="right")).astype(np.int64)
        return in_flight


def _gaps_s(trace: RequestTrace) -> FloatArray:
    """As `RequestTrace.gaps_s`, in the time that a long answer leaves."""
    times_s = np.array(trace.arrivals.times_s)
    tokens: npt.NDArray[np.int32] = np.array(trace.arrivals.tokens)
    gaps_s = np.zeros(max(0, int(tokens.sum()) - 1))
    gaps_s[np.cumsum(tokens)[:-1] - 1] = np.diff(times_s)
    return gaps_s


def to_load_result(traces: Sequence[RequestTrace], start_s: float, end_s: float, **facts: Any) -> LoadResult:
    """Counts the requests scheduled in [start_s, end_s), and the tokens of all requests that arrived therein."""
    return WindowRecord(traces, start_s).look(end_s, end_s, **facts)


def partial_result(traces: Sequence[RequestTrace]) -> LoadResult:
    """Everything that is known of a run that was broken off: evidence, and no measurement."""
    start_s = min((trace.scheduled_s for trace in traces), default=0.0)
    return to_load_result(traces, start_s, max((trace.scheduled_s for trace in traces), default=0.0) + 1e-9)
