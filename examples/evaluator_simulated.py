#!/usr/bin/env python3
"""An external evaluator that needs nothing but Python: it computes what a small server would measure.

    python -m optimizer run --space examples/chat-8b.yaml --evaluator "python3 examples/evaluator_simulated.py"

Replace `measure` by your own harness: start the engine with `flags`, load it with `workload`, read the figures. What
it must print is told in docs/evaluator.md. Everything but the last line of stdout is for people.
"""

import json
import math
import random
import sys

POOL_TOKENS = 50_000
"""Tokens of KV cache at a memory share of 0.9."""
IN_FLIGHT, PREFIX, PROMPT, ANSWER = 64, 800, 325, 175
"""Requests at once, and tokens of each: the prefix that all share, the rest of the prompt, the answer."""
NOISE = 0.02
"""Relative standard error of every figure."""


class CannotStart(Exception):
    """The setting does not start. `violation` is how far it is from starting: log(needed / available)."""

    def __init__(self, detail: str, violation: float) -> None:
        super().__init__(detail)
        self.violation = violation


def measure(flags: dict, noise: random.Random) -> tuple[dict, dict]:
    """Metrics and their standard errors, of one setting."""
    pool = POOL_TOKENS * float(flags.get("gpu-memory-utilization", 0.9)) / 0.9
    context = int(flags.get("max-model-len", 8192))
    if context > pool:
        detail = f"{context} tokens of context do not fit into {pool:.0f} of KV cache"
        raise CannotStart(detail, math.log(context / pool))
    batch = min(int(flags.get("max-num-seqs", 256)), IN_FLIGHT)
    budget = int(flags.get("max-num-batched-tokens", 2048))
    own = PROMPT + (0 if flags.get("enable-prefix-caching", True) else PREFIX)
    preempted = max(0.0, batch * (own + ANSWER) / pool - 1.0)
    step_ms = 8.0 + 0.12 * batch
    prefill_ms = 0.04 * own * (1.0 + 0.4 * abs(math.log2(budget / 4096)))
    request_ms = (prefill_ms + ANSWER * step_ms / batch) * (1.0 + preempted)
    mean_e2e_ms = IN_FLIGHT * request_ms  # Little's law
    exact = {
        "output_tokens_per_s": 1000.0 * ANSWER / request_ms,
        "requests_per_s": 1000.0 / request_ms,
        "mean_e2e_ms": mean_e2e_ms,
        "p99_e2e_ms": 1.4 * mean_e2e_ms,
        "p99_ttft_ms": 12.0 * prefill_ms + (IN_FLIGHT - batch) * request_ms,
        "p99_tpot_ms": 1.5 * (step_ms + prefill_ms),
    }
    metrics = {name: value * noise.lognormvariate(0.0, NOISE) for name, value in exact.items()}
    errors = {name: NOISE * value for name, value in metrics.items()}
    return {**metrics, "preemptions": round(100.0 * preempted), "error_rate": 0.0}, errors


def main() -> None:
    """Read the setting from stdin, measure it, and print the answer as the last line."""
    request = json.load(sys.stdin)
    print(f"trial {request['trial']}, attempt {request['attempt']}: {request['params']}")
    try:
        metrics, errors = measure(request["flags"], random.Random(request["content_seed"]))
        answer = {"status": "ok", "metrics": metrics, "stderr": errors}
    except CannotStart as trouble:
        answer = {
            "status": "failed",
            "kind": "kv_cache_too_small",
            "blame": "config",
            "detail": str(trouble),
            "violation": trouble.violation,
        }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
