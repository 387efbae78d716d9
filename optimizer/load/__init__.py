"""Traffic: what is sent to a live engine, and the times at which its answers come.

Here is what describes traffic. What sends it (`driver`, `completion`, `warm_up`, `result`) is imported from its
own module: its HTTP client takes a quarter of a second to load, and most commands only read what a workload is.
"""

from optimizer.load.arrival_process import ArrivalProcess, ClosedLoop, Window
from optimizer.load.failure import LoadFailed
from optimizer.load.lengths import FixedLength, LengthDistribution, LognormalLength, MixtureLength, UniformLength
from optimizer.load.planned import PlannedRequest
from optimizer.load.requests import RequestPlan
from optimizer.load.samples import write_samples
from optimizer.load.workload import PrefixSharing, WarmUp, Workload

__all__ = [
    "ArrivalProcess",
    "ClosedLoop",
    "FixedLength",
    "LengthDistribution",
    "LoadFailed",
    "LognormalLength",
    "MixtureLength",
    "PlannedRequest",
    "PrefixSharing",
    "RequestPlan",
    "UniformLength",
    "WarmUp",
    "Window",
    "Workload",
    "write_samples",
]
