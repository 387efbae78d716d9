"""What is observed of engine and host while load runs, and the table of metrics that a measurement is told in."""

from optimizer.metrics.bound import Bound, BoundContext, BoundKind, bound_in, judge_bound
from optimizer.metrics.engine_scraper import EngineScraper, read_metrics
from optimizer.metrics.exposition import Unreadable
from optimizer.metrics.gpu_usage import GpuGauges
from optimizer.metrics.hit_rate import hit_rate_notes
from optimizer.metrics.host_usage import HostUsageMonitor
from optimizer.metrics.names import METRICS, Metric
from optimizer.metrics.summary import summarize
from optimizer.metrics.telemetry import Observed, Telemetry

__all__ = [
    "METRICS",
    "Bound",
    "BoundContext",
    "BoundKind",
    "EngineScraper",
    "GpuGauges",
    "HostUsageMonitor",
    "Metric",
    "Observed",
    "Telemetry",
    "Unreadable",
    "bound_in",
    "hit_rate_notes",
    "judge_bound",
    "read_metrics",
    "summarize",
]
