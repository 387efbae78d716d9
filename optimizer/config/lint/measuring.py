"""Rules about the measurement: whether it can show what the limits ask, and what would falsify it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from optimizer.config.lint.facts import Facts
from optimizer.config.lint.rule import Hit, LintRule
from optimizer.objectives.score import fewest_values
from optimizer.search_spaces import denied_reason, get_flag

WINDOW_PER_LATENCY: Final = 10.0
"""A window of ten latencies holds ten generations of requests; its two ends cut a fifth of them at the most."""
GAMING_FLAGS: Final = ("stream-interval", "max-num-queued-reqs", "max-num-queued-tokens")
_PLAN: Final = "VLLM_ENABLE_STARTUP_PLAN"
_PERCENTILE: Final = re.compile(r"p(\d+(?:\.\d+)?)_")


def _few_requests(facts: Facts) -> Iterator[Hit]:
    """The strictest percentile among limits and objective; below `fewest_values` it is the largest value seen."""
    subject = facts.subject
    percents = {str(slo): slo.percent for slo in subject.slos if slo.percent is not None}
    if subject.objective is not None and (match := _PERCENTILE.match(subject.objective.name)):
        percents[f"objective {subject.objective.name}"] = float(match[1])
    if subject.workload is None or not percents:
        return
    name = max(percents, key=lambda key: percents[key])
    needed, counted = fewest_values(percents[name]), subject.workload.window.min_requests
    if counted < needed:
        yield Hit(
            f"{name} needs {needed} requests to be more than the slowest one seen, and the window may close after "
            f"{counted}",
            "workload.window.min_requests",
            remedy=f"set min_requests to {needed} at the least; ten times as many make the verdict repeatable",
        )


def _short_window(facts: Facts) -> Iterator[Hit]:
    """Limits on whole requests or their first token, stated in time: what is relative is not known yet."""
    workload = facts.subject.workload
    for slo in facts.subject.slos:
        if workload is None or slo.limit_ms is None or slo.metric not in ("e2e", "ttft"):
            continue
        limit_s, window_s = slo.limit_ms / 1000, workload.window.min_s
        if window_s < WINDOW_PER_LATENCY * limit_s:
            yield Hit(
                f"{slo} lets a request wait {limit_s:g} s, and the window may close after {window_s:g} s, "
                f"{window_s / limit_s:.1f} times that",
                "workload.window.min_s",
                remedy=f"set min_s to {WINDOW_PER_LATENCY * limit_s:g} or more",
            )


def _shared_cores(facts: Facts) -> Iterator[Hit]:
    if facts.subject.device == "cpu" and facts.subject.pin_cpus is False:
        yield Hit("device is cpu, and pin_cpus is false", "engine.pin_cpus")


def _no_stats(facts: Facts) -> Iterator[Hit]:
    flag = "disable-log-stats"
    if get_flag(facts.subject.flags, flag) is True or flag in facts.subject.left_out:
        yield Hit(f"{flag} is set", facts.where(flag))


def _games_score(facts: Facts) -> Iterator[Hit]:
    for flag in GAMING_FLAGS:
        value = get_flag(facts.subject.flags, flag)
        if flag == "stream-interval" and value == 1:
            continue
        if value is not None or flag in facts.subject.left_out:
            yield Hit(f"{flag} is set: {denied_reason(flag)}", facts.where(flag))


def _startup_plan(facts: Facts) -> Iterator[Hit]:
    if facts.subject.env.get(_PLAN, "0") not in ("", "0"):
        where = _PLAN if facts.subject.space is None else f"engine.env.{_PLAN}"
        yield Hit(f"{_PLAN} is {facts.subject.env[_PLAN]}", where)


RULES: Final = (
    LintRule(
        "too-few-requests-for-percentile",
        "warning",
        "The window may close after fewer requests than its strictest percentile needs: 100 for P99, 1000 for P99.9.",
        "The percentile is then simply the slowest request, and the verdict changes from run to run.",
        "raise `window.min_requests`",
        _few_requests,
    ),
    LintRule(
        "window-shorter-than-ten-latencies",
        "warning",
        f"The shortest window is less than {WINDOW_PER_LATENCY:g} times a limit on TTFT or E2E.",
        "Requests last nearly as long as one looks: a queue that grows slowly is not seen, and the ends of the window "
        "weigh too much.",
        "raise `window.min_s`",
        _short_window,
    ),
    LintRule(
        "engine-and-load-share-cores",
        "warning",
        "An engine on the CPU without `pin_cpus`.",
        "Engine and load generator take cores from each other, so that each distorts what is measured of the other.",
        "set `pin_cpus: true`",
        _shared_cores,
    ),
    LintRule(
        "log-stats-disabled",
        "warning",
        "`disable-log-stats`.",
        "vLLM then reports none of its own metrics: no KV usage, no preemptions, no hit rate. It is left out of every "
        "trial.",
        "leave it out",
        _no_stats,
    ),
    LintRule(
        "flag-games-the-score",
        "warning",
        "`stream-interval`, `max-num-queued-reqs` or `max-num-queued-tokens`.",
        "They improve what is measured and not what users get: tokens arrive in bundles, or users are turned away with "
        "HTTP 503. They are left out of every trial.",
        "set them after tuning, if your service wants them",
        _games_score,
    ),
    LintRule(
        "startup-plan-on",
        "error",
        f"`{_PLAN}` in the environment.",
        "vLLM then reuses the KV cache size of an earlier start whose key leaves out `gpu-memory-utilization`: a trial "
        "with another utilization runs with the wrong pool.",
        f"unset {_PLAN}",
        _startup_plan,
    ),
)
