"""Scripted faults: which there are, when each strikes, and whether it is due.

The table names the faults; the code that a fault changes asks `FaultWatch.due`.
"""

from __future__ import annotations

import enum
import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optimizer.core.engine_config import canonical_flag
from optimizer.core.errors import InputError

FAULTS_VARIABLE = "AUTOTUNE_SIM_FAULTS"
STATE_VARIABLE = "AUTOTUNE_SIM_STATE"


class Fault(enum.StrEnum):
    """The faults that can be scripted."""

    PORT_TAKEN = "port_taken"
    NEVER_READY = "never_ready"
    DIE_LOADING = "die_loading"
    KV_TOO_SMALL = "kv_too_small"
    OOM_LOADING = "oom_loading"
    OOM_UNDER_LOAD = "oom_under_load"
    HANG_HEALTH_200 = "hang_health_200"
    SLOW_STREAM = "slow_stream"
    TRUNCATED_SSE = "truncated_sse"
    HTTP_500_BURST = "http_500_burst"
    HTTP_503_BURST = "http_503_burst"
    GARBAGE_METRICS = "garbage_metrics"
    EXIT_SILENTLY = "exit_silently"
    ESCAPE_GROUP = "escape_group"
    IGNORE_SIGTERM = "ignore_sigterm"


BURST_REQUESTS = 10
"""Completion requests that one burst of HTTP errors answers."""
SLOW_STREAM_FACTOR = 20.0
"""How much longer each step lasts under `slow_stream`."""

FAULTS: Mapping[Fault, str] = {
    Fault.PORT_TAKEN: "start: 'Address already in use', exit 1",
    Fault.NEVER_READY: "start: loads for ever, /health refused",
    Fault.DIE_LOADING: "start: EngineCore dies without a word of why, exit 1",
    Fault.KV_TOO_SMALL: "start: no request of max_model_len fits, exit 1",
    Fault.OOM_LOADING: "start: CUDA out of memory, exit 1",
    Fault.OOM_UNDER_LOAD: "serving: CUDA out of memory, EngineCore dies, exit 0",
    Fault.HANG_HEALTH_200: "serving: no more tokens, /health stays 200",
    Fault.SLOW_STREAM: f"serving: every step lasts {SLOW_STREAM_FACTOR:g} times as long",
    Fault.TRUNCATED_SSE: "serving: streams end cleanly after half their tokens, without [DONE]",
    Fault.HTTP_500_BURST: f"serving: the next {BURST_REQUESTS} completion requests get 500",
    Fault.HTTP_503_BURST: f"serving: the next {BURST_REQUESTS} completion requests get 503",
    Fault.GARBAGE_METRICS: "serving: /metrics answers 200 with bytes that are no metrics",
    Fault.EXIT_SILENTLY: "serving: both processes are gone at once, exit 0, nothing logged",
    Fault.ESCAPE_GROUP: "EngineCore moves to a session of its own, out of reach of killpg",
    Fault.IGNORE_SIGTERM: "both processes ignore SIGTERM",
}
"""Every fault and what it looks like from outside."""


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """One fault of the script. All conditions that are given must hold.

    Attributes:
        fault: What happens.
        when: Flag to value; strikes only a launch with those settings.
        nth_launch: Strikes only that launch, counted from 1 in the state file.
        after_requests: Strikes once more than this many completion requests have come.
        after_s: Strikes this many seconds after the server is ready; a fault at start, after it began to load.
    """

    fault: Fault
    when: Mapping[str, object]
    nth_launch: float | None = None
    after_requests: float | None = None
    after_s: float | None = None

    def applies(self, flags: Mapping[str, object], launch: int | None) -> bool:
        """Whether this launch is one that it strikes."""
        if self.nth_launch is not None and self.nth_launch != launch:
            return False
        return all(str(flags.get(canonical_flag(flag))) == str(value) for flag, value in self.when.items())


class FaultWatch:
    """Tells each process whether a fault is due by now. Each process has its own."""

    def __init__(self, scripted: tuple[ScriptedFault, ...]) -> None:
        self._scripted = scripted
        self._requests = 0
        self._since_s = time.monotonic()

    def restart_clock(self) -> None:
        """From here on `after_s` counts."""
        self._since_s = time.monotonic()

    def note_request(self) -> None:
        """Counts a completion request that has come."""
        self._requests += 1

    def scripts(self, fault: Fault) -> bool:
        """Whether this fault strikes this launch, now or later."""
        return any(entry.fault is fault for entry in self._scripted)

    def due(self, fault: Fault) -> bool:
        """Whether it strikes now."""
        elapsed_s = time.monotonic() - self._since_s
        return any(
            entry.fault is fault
            and (entry.after_requests is None or self._requests > entry.after_requests)
            and (entry.after_s is None or elapsed_s >= entry.after_s)
            for entry in self._scripted
        )

    def wait_for_start_fault(self, fault: Fault) -> bool:
        """Whether a fault at start strikes this launch; returns after its `after_s`. Requests cannot have come yet."""
        delays_s = [entry.after_s or 0.0 for entry in self._scripted if entry.fault is fault]
        if not delays_s:
            return False
        time.sleep(min(delays_s))
        return True


def read_script(environ: Mapping[str, str]) -> tuple[ScriptedFault, ...]:
    """The script in `AUTOTUNE_SIM_FAULTS`.

    Raises:
        InputError: It is not such a list, or counts launches without a state file.
    """
    text = environ.get(FAULTS_VARIABLE, "[]")
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise InputError(f"{FAULTS_VARIABLE}: not JSON: {error}") from error
    if not isinstance(entries, list):
        raise InputError(f"{FAULTS_VARIABLE}: expected a list, found {text!r}")
    script = tuple(_parse_entry(entry) for entry in entries)
    if STATE_VARIABLE not in environ and any(entry.nth_launch is not None for entry in script):
        raise InputError(f"{FAULTS_VARIABLE}: nth_launch needs a count", hint=f"name a file in {STATE_VARIABLE}")
    return script


def count_launch(environ: Mapping[str, str]) -> int | None:
    """Adds this launch to the state file and returns its number, from 1; None without such a file."""
    if STATE_VARIABLE not in environ:
        return None
    with Path(environ[STATE_VARIABLE]).open("a+", encoding="ascii") as state:
        fcntl.flock(state, fcntl.LOCK_EX)
        state.seek(0)
        launch = int(state.read() or "0") + 1
        state.seek(0)
        state.truncate()
        state.write(str(launch))
        state.flush()
        os.fsync(state.fileno())
    return launch


def _parse_entry(entry: object) -> ScriptedFault:
    known = set(ScriptedFault.__slots__)
    if not isinstance(entry, dict) or "fault" not in entry or not set(entry) <= known:
        raise InputError(f"{FAULTS_VARIABLE}: {entry!r} is no fault", hint=f"an object with the keys {sorted(known)}")
    if entry["fault"] not in list(Fault):
        names = ", ".join(Fault)
        raise InputError(f"{FAULTS_VARIABLE}: unknown fault {entry['fault']!r}", hint=f"one of {names}")
    when = entry.get("when", {})
    if not isinstance(when, dict):
        raise InputError(f"{FAULTS_VARIABLE}: when={when!r} is no object of flag and value")
    return ScriptedFault(
        Fault(entry["fault"]),
        when,
        nth_launch=_number(entry, "nth_launch"),
        after_requests=_number(entry, "after_requests"),
        after_s=_number(entry, "after_s"),
    )


def _number(entry: dict[str, object], key: str) -> float | None:
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InputError(f"{FAULTS_VARIABLE}: {key}={value!r} is no number >= 0")
    return value
