"""What a load process tells its parent: lines of JSON that say what is new of its requests and of itself."""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from optimizer.load.client.trace import RequestTrace
from optimizer.load.self_watch import SelfWatch

_UNCHANGING = ("scheduled_s", "prompt_tokens", "asked_tokens", "number", "session", "turn")
_CHANGING = ("ready_s", "sent_s", "ended_s", "error", "prompt_tokens", "http_status")


class ReportWriter:
    """Tells what is new since the last report.

    Args:
        traces: The process's requests; whoever sends them adds to it.
        watch: What it sees of itself.
    """

    def __init__(self, traces: Sequence[RequestTrace], watch: SelfWatch) -> None:
        self._traces = traces
        self._watch = watch
        self._told = 0
        self._open: dict[int, tuple[int, list[object]]] = {}
        self._samples_told = 0

    def report(self, now_s: float, **facts: Any) -> bytes:
        """One line: everything that happened before `now_s` is told by it and those before it."""
        times_s, tokens = array("d"), array("i")
        told = [*self._changes(times_s, tokens)]
        samples = slice(self._samples_told, len(self._watch.at_s))
        self._samples_told = samples.stop
        line = {
            "now_s": now_s,
            "requests": told,
            "times_s": _packed(times_s),
            "tokens": _packed(tokens),
            "watch": [_packed(part[samples]) for part in (self._watch.at_s, self._watch.lag_s, self._watch.cpu_s)],
            **facts,
        }
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"

    def _changes(self, times_s: array[float], tokens: array[int]) -> Iterator[list[Any]]:
        new = range(self._told, len(self._traces))
        self._told = new.stop
        for which in (*self._open, *new):
            trace = self._traces[which]
            before = self._open.get(which)
            seen = 0 if before is None else before[0]
            state = [getattr(trace, name) for name in _CHANGING]
            if before == (len(trace.arrivals), state):
                continue
            times_s.extend(trace.arrivals.times_s[seen:])
            tokens.extend(trace.arrivals.tokens[seen:])
            first = [getattr(trace, name) for name in _UNCHANGING] if before is None else None
            self._open[which] = (len(trace.arrivals), state)
            if trace.ended_s is not None:
                del self._open[which]
            yield [which, len(trace.arrivals) - seen, first, *state]


class ReportReader:
    """Puts what one process reports into the traces of the run.

    Args:
        traces: Takes its requests.
        on_end: Told of every request that has ended.

    Attributes:
        known_until_s: What happened before is known.
        watch: What the process saw of itself.
        exhausted: Whether nothing more will ever become due in it.
    """

    def __init__(self, traces: list[RequestTrace], on_end: Callable[[RequestTrace], None]) -> None:
        self._traces = traces
        self._on_end = on_end
        self._by_number: list[RequestTrace] = []
        self.known_until_s = float("-inf")
        self.watch = SelfWatch()
        self.exhausted = False

    def read(self, line: dict[str, Any]) -> None:
        """Takes one report."""
        times_s, tokens = _unpacked("d", line["times_s"]), _unpacked("i", line["tokens"])
        chunk = 0
        ended = []
        for which, chunks, first, *state in line["requests"]:
            if first is not None:
                self._by_number.append(_new_trace(first))
                self._traces.append(self._by_number[which])
            trace = self._by_number[which]
            trace.arrivals.times_s.extend(times_s[chunk : chunk + chunks])
            trace.arrivals.tokens.extend(tokens[chunk : chunk + chunks])
            chunk += chunks
            for name, value in zip(_CHANGING, state, strict=True):
                setattr(trace, name, value)
            if trace.ended_s is not None:
                ended.append(trace)
        for mine, new in zip((self.watch.at_s, self.watch.lag_s, self.watch.cpu_s), line["watch"], strict=True):
            mine.extend(_unpacked("d", new))
        self.known_until_s, self.exhausted = line["now_s"], line["exhausted"]
        for trace in sorted(ended, key=lambda trace: trace.ended_s or 0.0):
            self._on_end(trace)


def _new_trace(fields: list[Any]) -> RequestTrace:
    scheduled_s, prompt_tokens, asked_tokens, number, session, turn = fields
    return RequestTrace(scheduled_s, prompt_tokens, asked_tokens, number=number, session=session, turn=turn)


def _packed(values: array[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _unpacked(kind: str, packed: str) -> array[Any]:
    values: array[Any] = array(kind)
    values.frombytes(base64.b64decode(packed))
    return values
