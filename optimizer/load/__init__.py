"""Traffic: what is sent to a live engine, and the times at which its answers come."""

from optimizer.load.closed_loop import LoadProgress, run_closed_loop
from optimizer.load.failure import LoadFailed
from optimizer.load.lengths import FixedLength, LengthDistribution, LognormalLength, MixtureLength, UniformLength
from optimizer.load.requests import PlannedRequest, RequestPlan
from optimizer.load.samples import write_samples
from optimizer.load.warm_up import warm_up
from optimizer.load.workload import ArrivalProcess, ClosedLoop, PrefixSharing, WarmUp, Window, Workload

__all__ = [
    "ArrivalProcess",
    "ClosedLoop",
    "FixedLength",
    "LengthDistribution",
    "LoadFailed",
    "LoadProgress",
    "LognormalLength",
    "MixtureLength",
    "PlannedRequest",
    "PrefixSharing",
    "RequestPlan",
    "UniformLength",
    "WarmUp",
    "Window",
    "Workload",
    "run_closed_loop",
    "warm_up",
    "write_samples",
]
