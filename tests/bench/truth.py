"""How far the client's figures are from what the server wrote down, beside `vllm bench serve` on the same server.

    python -m tests.bench.truth [--in-flight 50,200,500] [--rounds 4] [--own-times]

Errors in milliseconds, of the 50th, 90th and 99th percentile: what the client says, less what the server's log says of
that client's own run. The truth of TTFT and E2E begins when the request reached the server, so what the client needs
before that counts as its error; one warm-up request a slot has opened its connection before. Nothing here passes or
fails.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.bench import clients
from tests.bench.clients import OURS, VLLM, Seen, Times

PERCENTILES = (50, 90, 99)
METRICS = {"TTFT": "ttft_s", "TPOT": "tpot_s", "ITL": "itl_s", "E2E": "e2e_s"}
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64


def percentiles_ms(times_s: Times) -> Times:
    if len(times_s) == 0:
        return np.full(len(PERCENTILES), np.nan)
    return np.asarray(np.percentile(times_s, PERCENTILES) * 1000.0, dtype=np.float64)


def both(url: str, folder: Path, script: Mapping[str, object], **load: int) -> dict[str, tuple[Seen, Seen]]:
    """Client's view and truth of one run of each client."""
    load |= {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    seen = {}
    for name in (OURS, VLLM):
        clients.ask(url, "/script", script)
        said = clients.ours(url, **load)[0] if name == OURS else clients.vllm(url, folder, **load)
        seen[name] = said, clients.truth(url, load["warm_ups"])
    return seen


def errors(url: str, folder: Path, options: argparse.Namespace) -> None:
    script = {"in_steps": not options.own_times, "step_s": 0.05}
    print(f"{'':<24}{'':<18}" + "".join(f"{f'{metric} p50 / p90 / p99':>30}" for metric in METRICS))
    for in_flight in options.in_flight:
        load = {"requests": options.rounds * in_flight, "in_flight": in_flight, "warm_ups": in_flight}
        for name, (said, true) in both(url, folder, script, **load).items():
            cells = {"truth": true, f"error of {name}": said}
            for label, view in cells.items():
                row = f"{in_flight:>4} in flight  {label:<28}"
                for attribute in METRICS.values():
                    values = percentiles_ms(getattr(view, attribute))
                    if view is said:
                        values = values - percentiles_ms(getattr(true, attribute))
                    row += f"{' / '.join(f'{value:.2f}' for value in values):>30}"
                print(row, flush=True)


def counting(url: str, folder: Path) -> None:
    """Bundled tokens, and answers that fail after they have begun."""
    print(f"\n{'40 answers, 10 at a time':<44}{'':<26}{'failed':>8}{'tokens':>8}{'ITL p50 ms':>12}{'ITL mean ms':>13}")
    scripts: dict[str, dict[str, object]] = {
        "4 tokens in each chunk": {"tokens_per_chunk": 4},
        "an error after 4 chunks in every 4th": {"fault": "error", "fault_every": 4},
        "cut off after 4 chunks, every 4th": {"fault": "cut", "fault_every": 4},
        "half the tokens, every 4th": {"fault": "short", "fault_every": 4},
        "HTTP 503, every 4th": {"fault": "503", "fault_every": 4},
    }
    for label, script in scripts.items():
        for name, (said, true) in both(url, folder, script, requests=40, in_flight=10, warm_ups=0).items():
            for who, view in ((f"truth, run of {name}", true), (name, said)):
                itl = view.itl_s * 1000.0
                print(f"{label:<44}{who:<30}{view.failed:>4}{view.tokens:>8}{np.median(itl):>12.2f}{np.mean(itl):>13.2f}",
                      flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", default="50,200,500", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--rounds", type=int, default=4, help="requests per slot")
    parser.add_argument("--own-times", action="store_true", help="each answer has its own times, no common steps")
    options = parser.parse_args()
    print(clients.versions())
    print(f"{PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out, a chunk every 50 ms, closed loop\n")
    with tempfile.TemporaryDirectory() as folder, clients.scripted_server() as url:
        errors(url, Path(folder), options)
        counting(url, Path(folder))


if __name__ == "__main__":
    main()
