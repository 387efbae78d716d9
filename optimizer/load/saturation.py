"""Whether more comes than the engine can serve: requests in flight and TTFT climb, and go on climbing.

A busy queue wanders. At 90 % load it swings for tens of seconds, and a test for a trend alone, which takes the seconds
for independent, would call that a climb. So the growth must also be larger than arrivals and completions of a queue
that just keeps up would make by chance, and the time to first token must grow by a share of every second that passes,
as it does when the queue gets longer than what is served.
"""

from __future__ import annotations

import math

import numpy as np

from optimizer.core.measurement import FloatArray, IntArray, LoadResult
from optimizer.load.trend import mann_kendall_z, theil_sen_slope

SHORTEST_S = 10
FEWEST_ARRIVALS = 50
CLIMBS_AT_Z = 2.33
"""One-sided 1 % of each trend test."""
CHANCE_Z = 2.5
"""The queue must have grown by so many standard deviations of a walk that gains and loses a request at random for each
arrival: arrivals and completions both Poisson, variance 2 for each. In simulated queues (1, 16 and 64 servers; 5 to 100
arrivals a second, 120 s at 90 % load) fewer than 1 % of the runs were called saturated; at 120 % load and 20 arrivals a
second half of them within 22 s, at 40 within 13 s. Fewer arrivals a second take longer, as they must."""
LEAST_GROWTH = 0.05
"""Of the requests that came, so many must have been added to those in flight; and TTFT must grow by so much a second.
A queue whose load is 1.05 times what can be served grows by 1 - 1 / 1.05 of what comes and waits 0.05 s more a second.
"""


def is_saturated(load: LoadResult) -> bool:
    """Judges the window so far, of an open loop. With a cap it is the queue at the client that climbs."""
    seconds, arrivals = load.in_flight_per_s.size, load.scheduled_s.size
    if seconds < SHORTEST_S or arrivals < FEWEST_ARRIVALS:
        return False
    least = max(CHANCE_Z * math.sqrt(2.0 * arrivals), LEAST_GROWTH * arrivals)
    in_flight = load.in_flight_per_s.astype(np.float64)
    at_s = np.arange(seconds, dtype=np.float64)
    if theil_sen_slope(at_s, in_flight) * seconds < least or mann_kendall_z(in_flight) < CLIMBS_AT_Z:
        return False
    seen_s, ttft_s = _ttft_by_second(load)
    if seen_s.size < SHORTEST_S * 0.7:
        return False
    climbs = theil_sen_slope(seen_s.astype(np.float64), ttft_s) >= LEAST_GROWTH
    return climbs and mann_kendall_z(ttft_s) >= CLIMBS_AT_Z


def _ttft_by_second(load: LoadResult) -> tuple[IntArray, FloatArray]:
    """The median TTFT of the first tokens that came in each second of the window, and which seconds had any.

    By when the token came and not by when it was asked for: the latest requests, of which only the fast ones have
    answered, would look fast.
    """
    came = ~np.isnan(load.first_token_s)
    second = np.floor(load.first_token_s[came] - load.window_start_s).astype(np.int64)
    order = np.argsort(second, kind="stable")
    seconds, starts = np.unique(second[order], return_index=True)
    groups = np.split((load.first_token_s - load.scheduled_s)[came][order], starts[1:])
    return seconds, np.array([np.median(group) for group in groups])
