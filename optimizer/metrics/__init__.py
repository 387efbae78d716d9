"""What is observed of engine and host while load runs, and the table of metrics that a measurement is told in."""

from optimizer.metrics.engine_scraper import EngineScraper
from optimizer.metrics.host_usage import HostUsageMonitor
from optimizer.metrics.names import METRICS, Metric
from optimizer.metrics.summary import summarize

__all__ = ["METRICS", "EngineScraper", "HostUsageMonitor", "Metric", "summarize"]
