"""Whether an engine under load still works: tokens come, or it hangs.

`/health` tells little: a server whose EngineCore is stuck answers 200 for ever, and a busy one may answer late. What
tells is work. While requests run, one of these must move: the tokens that our clients receive, the engine's own
counters of generated and prefilled tokens, its use of the KV pool (which moves with every step of a long prefill).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NoReturn

import aiohttp

from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine.launch import EngineFailed, EngineProcess
from optimizer.engine.vllm.log_lines import last_lines
from optimizer.load.completion import RequestTrace
from optimizer.metrics import Unreadable, read_metrics

HANG_S: Final = 30.0
"""Standing still for so long is a hang. The slowest single step seen on a GPU takes a few seconds."""
PAUSE_FACTOR: Final = 10.0
"""An engine that has paused before (prefill of a long prompt for one user) may pause for ten times as long."""
WARM_UP_FACTOR: Final = 4.0
"""During warm-up kernels may still be compiled for the workload's shapes."""
_LOOK_EVERY_S = 1.0
_WORK = ("generation_tokens", "prompt_tokens", "kv_cache_usage")


class TokenWatch:
    """Watches the requests of one trial.

    Args:
        engine: The live engine.
        hang_s: Shortest standstill that is a hang.
        now_s: The clock of the traces.
        sleep: Waits on that clock.
    """

    def __init__(
        self,
        engine: EngineProcess,
        *,
        hang_s: float = HANG_S,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._hang_s = hang_s
        self._now_s = now_s
        self._sleep = sleep
        self._longest_pause_s = 0.0

    def limit_s(self, stage: Stage) -> float:
        """The standstill that is a hang, as far as this trial's own pauses are known."""
        shortest_s = self._hang_s * (WARM_UP_FACTOR if stage is Stage.WARMING_UP else 1.0)
        return max(shortest_s, PAUSE_FACTOR * self._longest_pause_s)

    async def until_stuck(self, stage: Stage, traces: list[RequestTrace]) -> NoReturn:
        """Looks at the requests about once a second, for as long as there is progress.

        Args:
            stage: Where in the trial this is.
            traces: The requests; whoever sends them adds to it.

        Raises:
            EngineFailed: The engine hangs, or is dead behind a server that lives.
        """
        every_s = min(_LOOK_EVERY_S, self._hang_s / 4)
        look = _Look(traces, self._now_s())
        work: Mapping[str, float] | None = None
        while True:
            await self._sleep(every_s)
            now_s = self._now_s()
            pause_s = look.again(now_s)
            self._longest_pause_s = max(self._longest_pause_s, pause_s - every_s)
            silent_s, limit_s = now_s - look.sign_s, self.limit_s(stage)
            if silent_s < limit_s / 3:
                work = None
                continue
            await self._engine.raise_if_dead(stage)
            before, work = work, await self._work()
            if before is not None and work is not None and work != before:
                look.sign_s = now_s
            elif silent_s >= limit_s:
                raise EngineFailed(self._hang(stage, silent_s, look, work))

    async def _work(self) -> Mapping[str, float] | None:
        """What the engine says that it has done; None when it cannot be read."""
        endpoint = self._engine.endpoint
        async with aiohttp.ClientSession() as session:
            try:
                values = (await read_metrics(endpoint, session)).values
            except Unreadable:
                return None
        return {name: values[name] for name in _WORK if math.isfinite(values.get(name, math.nan))}

    def _hang(self, stage: Stage, silent_s: float, look: _Look, work: Mapping[str, float] | None) -> Failure:
        told = "its /metrics cannot be read" if work is None else "its counters stand still too"
        running = f"{look.running} requests ran"
        facts = {
            "silent_s": round(silent_s, 1),
            "running_requests": float(look.running),
            "limit_s": self.limit_s(stage),
        }
        return Failure(
            kind=FailureKind.ENGINE_HANG,
            stage=stage,
            blame=Blame.CONFIG,
            detail=f"the engine hangs: no token came for {silent_s:.0f} s while {running}, and {told}",
            evidence=last_lines(self._engine.log_text()),
            retryable=True,
            facts=facts | {f"engine_{name}": value for name, value in (work or {}).items()},
        )


class _Look:
    """The last sign of life in a growing list of requests.

    Attributes:
        sign_s: When the last token came or request ended, or when there was last nothing to wait for.
        running: Requests under way at the last look.
    """

    def __init__(self, traces: list[RequestTrace], now_s: float) -> None:
        self._traces = traces
        self._looked_at = 0
        self._open: list[RequestTrace] = []
        self.sign_s = now_s
        self.running = 0

    def again(self, now_s: float) -> float:
        """Look at what is new; returns the seconds between the last two signs, 0 when no new one came."""
        candidates = [*self._open, *self._traces[self._looked_at :]]
        self._looked_at = len(self._traces)
        newest_s = max((_last_sign_s(trace) for trace in candidates), default=self.sign_s)
        self._open = [trace for trace in candidates if trace.ended_s is None]
        self.running = sum(trace.sent_s is not None for trace in self._open)
        pause_s = max(0.0, newest_s - self.sign_s)
        if self.running == 0:
            self.sign_s, pause_s = now_s, 0.0
        else:
            self.sign_s = max(self.sign_s, newest_s)
        return pause_s


def _last_sign_s(trace: RequestTrace) -> float:
    """When a request last showed that the engine works: its last token, or its end."""
    if trace.ended_s is not None:
        return trace.ended_s
    return trace.arrivals[-1][0] if trace.arrivals else float("-inf")
