"""The traffic of one measurement: a workload with what the command line says of rate, number and time on top."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from pydantic import ValidationError

from optimizer.core.errors import InputError
from optimizer.load import ClosedLoop, Workload
from optimizer.load.arrival_process import ArrivalProcess, ConstantRate, GammaArrivals, PoissonArrivals

_HOUR_S = 3600.0
_SHORTEST_S = 0.001
_SWEEP = re.compile(r"(?P<low>[^:]+):(?P<high>[^:]+)(?::(?P<steps>\d+))?")
AUTOMATIC = "auto"
USUAL_STEPS = 6
_MOST_STEPS = 50


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """What the command line says of the traffic; None leaves what the workload says.

    Attributes:
        requests: How many are counted.
        concurrency: Requests in flight: all there are, or at most so many where a rate is given.
        rate_per_s: Poisson arrivals.
        duration_s: Length of the window.
    """

    requests: int | None = None
    concurrency: int | None = None
    rate_per_s: float | None = None
    duration_s: float | None = None

    @property
    def fixes_length(self) -> bool:
        """Whether it is said how long one measures, so that no verdict is waited for."""
        return self.requests is not None or self.duration_s is not None


AS_THE_WORKLOAD_SAYS = TrafficOptions()


def with_traffic(workload: Workload, options: TrafficOptions) -> Workload:
    """The workload with the options applied.

    Raises:
        InputError: A number is out of range, or does not fit the workload; the option is named.
    """
    _check(options)
    arrivals = _arrivals(workload.arrivals, options)
    window = workload.window.model_dump()
    if options.duration_s is not None:
        window |= {"min_s": options.duration_s, "max_s": options.duration_s, "min_requests": 1, "max_requests": None}
    if options.requests is not None:
        longest_s = max(workload.window.max_s, _HOUR_S) if options.duration_s is None else options.duration_s
        window |= {"min_s": min(_SHORTEST_S, longest_s), "max_s": longest_s}
        window |= {"min_requests": options.requests, "max_requests": options.requests}
    return _rebuilt(workload, {"arrivals": arrivals, "window": window})


def _check(options: TrafficOptions) -> None:
    for option, value, largest, example in (
        ("--requests", options.requests, 10_000_000, "2000"),
        ("--concurrency", options.concurrency, 10_000, "64"),
        ("--rate", options.rate_per_s, 100_000.0, "8 (arrivals per second)"),
        ("--duration", options.duration_s, 7 * 24 * _HOUR_S, "5m"),
    ):
        if value is not None and not (0 < value <= largest and math.isfinite(value)):
            raise InputError(
                f"{option} {value:g}: it must be above 0 and at most {largest:,.0f}", hint=f"such as {option} {example}"
            )


def _arrivals(present: ArrivalProcess, options: TrafficOptions) -> dict[str, object]:
    if options.rate_per_s is not None:
        return {"kind": "poisson", "rate_per_s": options.rate_per_s, "max_in_flight": options.concurrency}
    if options.concurrency is not None:
        return {"kind": "closed_loop", "in_flight": options.concurrency}
    return present.model_dump()


def _rebuilt(workload: Workload, changes: dict[str, object]) -> Workload:
    data = {**workload.model_dump(), **changes}
    try:
        return Workload.model_validate(data)
    except ValidationError as error:
        told = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise InputError(
            f"workload {workload.name}: {told}", hint="choose another --workload or leave the option out"
        ) from None


def sweep_levels(text: str, workload: Workload) -> tuple[float, ...]:
    """The levels of `--sweep LOW:HIGH[:STEPS]`, rising geometrically: requests in flight, or arrivals per second.

    `auto` takes 1 to four times the workload's own requests in flight, or a quarter to four times its rate.

    Raises:
        InputError: It is no such text, or the workload's arrivals have no level.
    """
    closed = isinstance(workload.arrivals, ClosedLoop)
    own = _own_level(workload.arrivals)
    if own is None:
        raise InputError(
            f"--sweep: the arrivals of workload {workload.name} have no level to vary",
            hint="give --rate or --concurrency as well",
        )
    if text == AUTOMATIC:
        low, high, steps = (1.0 if closed else own / 4, own * 4, USUAL_STEPS)
    else:
        low, high, steps = _parsed(text)
    if low > high or (steps > 1 and low == high):
        raise InputError(f"--sweep {text}: {low:g} is not below {high:g}", hint="write it as LOW:HIGH, such as 1:64")
    levels = [low * (high / low) ** (step / (steps - 1)) for step in range(steps)] if steps > 1 else [low]
    chosen = [max(1.0, float(round(level))) for level in levels] if closed else [float(f"{x:.4g}") for x in levels]
    return tuple(dict.fromkeys(chosen))


def _parsed(text: str) -> tuple[float, float, int]:
    match = _SWEEP.fullmatch(text.strip())
    hint = "write it as LOW:HIGH or LOW:HIGH:STEPS, such as 1:64:7; or leave the levels to --sweep auto"
    if match is None:
        raise InputError(f"--sweep {text}: these are no levels", hint=hint)
    try:
        low, high = float(match["low"]), float(match["high"])
    except ValueError:
        raise InputError(f"--sweep {text}: these are no levels", hint=hint) from None
    steps = USUAL_STEPS if match["steps"] is None else int(match["steps"])
    if not (low > 0 and high <= 100_000 and math.isfinite(high)) or not 1 <= steps <= _MOST_STEPS:
        raise InputError(f"--sweep {text}: levels lie above 0 and up to 100000, in 1 to {_MOST_STEPS} steps", hint=hint)
    return low, high, steps


def _own_level(arrivals: ArrivalProcess) -> float | None:
    match arrivals:
        case ClosedLoop():
            return float(arrivals.in_flight)
        case ConstantRate() | PoissonArrivals() | GammaArrivals():
            return arrivals.rate_per_s
        case _:
            return None


def at_level(workload: Workload, level: float) -> Workload:
    """The workload at one level of a sweep."""
    if isinstance(workload.arrivals, ClosedLoop):
        return _rebuilt(workload, {"arrivals": {"kind": "closed_loop", "in_flight": round(level)}})
    return _rebuilt(workload, {"arrivals": {**workload.arrivals.model_dump(), "rate_per_s": level}})


def is_closed(workload: Workload) -> bool:
    """Whether levels are requests in flight, and not arrivals per second."""
    return isinstance(workload.arrivals, ClosedLoop)
