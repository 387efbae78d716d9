"""The script of faults in the environment: which strike this launch, and whether one is due."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optimizer.core.engine_config import canonical_flag
from optimizer.core.errors import InputError
from optimizer.engine.simulated.faults import FAULTS, Fault

FAULTS_VARIABLE = "AUTOTUNE_SIM_FAULTS"
STATE_VARIABLE = "AUTOTUNE_SIM_STATE"


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """One fault of the script. All conditions that are given must hold.

    Attributes:
        fault: What happens.
        when: Flag to value; strikes only a launch with those settings.
        nth_launch: Strikes only that launch, counted from 1 in the state file.
        after_requests: Strikes once more than this many completion requests have come.
        after_s: Strikes this many seconds after the server is ready; a fault at start, after it began to load.
        amount: How much of it, in the unit of its description.
        name: What it concerns, such as a metric.
    """

    fault: Fault
    when: Mapping[str, object]
    nth_launch: float | None = None
    after_requests: float | None = None
    after_s: float | None = None
    amount: float | None = None
    name: str | None = None

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

    def amount(self, fault: Fault) -> float:
        """How much of a fault there is: what the script says, or the usual."""
        said = [entry.amount for entry in self._scripted if entry.fault is fault and entry.amount is not None]
        usual = FAULTS[fault].amount
        return said[0] if said else (0.0 if usual is None else usual)

    def names(self, fault: Fault) -> frozenset[str]:
        """What a fault concerns, if it is due."""
        if not self.due(fault):
            return frozenset()
        return frozenset(entry.name for entry in self._scripted if entry.fault is fault and entry.name is not None)

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
    fault = Fault(entry["fault"])
    when, name = entry.get("when", {}), entry.get("name")
    if not isinstance(when, dict):
        raise InputError(f"{FAULTS_VARIABLE}: when={when!r} is no object of flag and value")
    if (fault is Fault.MISSING_METRIC) != isinstance(name, str):
        raise InputError(f"{FAULTS_VARIABLE}: {fault.value} with name={name!r}", hint="missing_metric alone has a name")
    if entry.get("amount") is not None and FAULTS[fault].amount is None:
        raise InputError(f"{FAULTS_VARIABLE}: {fault.value} has no amount")
    numbers = {key: _number(entry, key) for key in ("nth_launch", "after_requests", "after_s", "amount")}
    return ScriptedFault(fault, when, **numbers, name=name)


def _number(entry: dict[str, object], key: str) -> float | None:
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InputError(f"{FAULTS_VARIABLE}: {key}={value!r} is no number >= 0")
    return value
