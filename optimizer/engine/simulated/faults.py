"""The faults that can be scripted, and what each looks like from outside.

`fault_script` says when one strikes; the code that a fault changes asks `FaultWatch.due`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Fault(enum.StrEnum):
    """The faults that can be scripted."""

    PORT_TAKEN = "port_taken"
    PORT_STOLEN = "port_stolen"
    NEVER_READY = "never_ready"
    SLOW_START = "slow_start"
    BUSY_START = "busy_start"
    DIE_LOADING = "die_loading"
    KV_TOO_SMALL = "kv_too_small"
    OOM_LOADING = "oom_loading"
    GPU_BUSY = "gpu_busy"
    OOM_UNDER_LOAD = "oom_under_load"
    DIE_SERVING = "die_serving"
    EXIT_SILENTLY = "exit_silently"
    HANG_HEALTH_200 = "hang_health_200"
    SLOW_HEALTH = "slow_health"
    SLOW_STREAM = "slow_stream"
    SHORT_ANSWER = "short_answer"
    BUNDLED_TOKENS = "bundled_tokens"
    TRUNCATED_SSE = "truncated_sse"
    SSE_ERROR = "sse_error"
    NO_USAGE = "no_usage"
    HTTP_500_BURST = "http_500_burst"
    HTTP_503_BURST = "http_503_burst"
    HTML_ANSWER = "html_answer"
    FOREIGN_MODEL = "foreign_model"
    GARBAGE_METRICS = "garbage_metrics"
    MISSING_METRIC = "missing_metric"
    SILENT_LOG = "silent_log"
    FLOOD_LOG = "flood_log"
    BAD_UTF8_LOG = "bad_utf8_log"
    ESCAPE_GROUP = "escape_group"
    DAEMON_CHILD = "daemon_child"
    IGNORE_SIGTERM = "ignore_sigterm"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One line of the table.

    Attributes:
        text: When and how it shows; `{}` stands for the amount.
        amount: How much of it there is unless the script says so; None where there is nothing to measure.
    """

    text: str
    amount: float | None = None

    @property
    def description(self) -> str:
        """The text with the usual amount."""
        return self.text if self.amount is None else self.text.format(f"{self.amount:g}")


FAULTS: Mapping[Fault, FaultKind] = {
    Fault.PORT_TAKEN: FaultKind("start: 'Address already in use', exit 1"),
    Fault.PORT_STOLEN: FaultKind("start: another process takes the port and serves another model; exit 1 {} s on", 2),
    Fault.NEVER_READY: FaultKind("start: stuck for ever without CPU or a line of log, /health refused"),
    Fault.SLOW_START: FaultKind("start: loads for {} s, and logs how far it is", 5),
    Fault.BUSY_START: FaultKind("start: computes for {} s without a line of log, as a compiler does", 5),
    Fault.DIE_LOADING: FaultKind("start: EngineCore dies without a word of why, exit 1"),
    Fault.KV_TOO_SMALL: FaultKind("start: no request of max_model_len fits, exit 1"),
    Fault.OOM_LOADING: FaultKind("start: CUDA out of memory, exit 1"),
    Fault.GPU_BUSY: FaultKind("start: a co-tenant leaves too little free memory on the device, exit 1"),
    Fault.OOM_UNDER_LOAD: FaultKind("serving: CUDA out of memory, EngineCore dies, exit 0"),
    Fault.DIE_SERVING: FaultKind("serving: EngineCore dies without a word of why, exit 0"),
    Fault.EXIT_SILENTLY: FaultKind("serving: both processes are gone at once, exit 0, nothing logged"),
    Fault.HANG_HEALTH_200: FaultKind("serving: no more tokens, /health stays 200"),
    Fault.SLOW_HEALTH: FaultKind("serving: /health answers after {} s", 10),
    Fault.SLOW_STREAM: FaultKind("serving: every step lasts {} times as long", 20),
    Fault.SHORT_ANSWER: FaultKind("serving: answers stop after {} of the tokens asked for", 0.5),
    Fault.BUNDLED_TOKENS: FaultKind("serving: {} tokens in each chunk of a stream", 4),
    Fault.TRUNCATED_SSE: FaultKind("serving: streams end cleanly after half their tokens, without [DONE]"),
    Fault.SSE_ERROR: FaultKind("serving: streams give an error object after half their tokens, then [DONE]"),
    Fault.NO_USAGE: FaultKind("serving: streams give no usage, asked for or not"),
    Fault.HTTP_500_BURST: FaultKind("serving: the next {} completion requests get 500", 10),
    Fault.HTTP_503_BURST: FaultKind("serving: the next {} completion requests get 503", 10),
    Fault.HTML_ANSWER: FaultKind("serving: completion requests get 200 with a page of HTML, as from a proxy"),
    Fault.FOREIGN_MODEL: FaultKind("serving: it knows another model name alone, as a foreign server on the port would"),
    Fault.GARBAGE_METRICS: FaultKind("serving: /metrics answers 200 with bytes that are no metrics"),
    Fault.MISSING_METRIC: FaultKind("serving: /metrics lacks the family given as `name`"),
    Fault.SILENT_LOG: FaultKind("log: not one line, whatever happens"),
    Fault.FLOOD_LOG: FaultKind("log: {} MiB of lines before it begins to load", 16),
    Fault.BAD_UTF8_LOG: FaultKind("log: lines that are no UTF-8"),
    Fault.ESCAPE_GROUP: FaultKind("EngineCore moves to a session of its own, out of reach of killpg"),
    Fault.DAEMON_CHILD: FaultKind(
        "EngineCore leaves a daemon of {} MiB: own session, no parent, empty environment, deaf to SIGTERM", 16
    ),
    Fault.IGNORE_SIGTERM: FaultKind("both processes ignore SIGTERM"),
}
"""Every fault and what it looks like from outside."""
