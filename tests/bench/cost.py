"""What the client costs in CPU time, beside `vllm bench serve`, and the arrivals that one core sustains.

    python -m tests.bench.cost [--pairs 5] [--requests 800] [--in-flight 128] [--rates 100,200,300,400,600]

CPU seconds of the client's process per 100,000 streamed tokens. Ours are taken around the load; those of `vllm bench
serve` from the beginning of its first request to the end of its last, so neither start nor imports nor the making of
prompts counts. Both ask for usage on every chunk, and so read the same bytes. The runs alternate. Each client runs on
the first core, the server on the second. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from tests.bench import clients
from tests.bench.clients import OURS, VLLM

CLIENT_CORE, SERVER_CORE = 0, 1
LATE_MS, OUTPUT_TOKENS = 5.0, 32


def per_100k(cpu_s: float, tokens: int) -> float:
    return cpu_s / tokens * 100_000


def pairs(url: str, folder: Path, options: argparse.Namespace) -> None:
    print(f"{options.requests} requests of 128 tokens in, 128 out, {options.in_flight} in flight, a chunk every "
          f"{options.step_ms:g} ms")  # fmt: skip
    load = {"requests": options.requests, "in_flight": options.in_flight, "prompt_tokens": 128, "output_tokens": 128,
            "warm_ups": options.in_flight, "core": CLIENT_CORE}  # fmt: skip
    figures: dict[str, list[float]] = {OURS: [], VLLM: []}
    for number in range(options.pairs):
        for name in (OURS, VLLM) if number % 2 == 0 else (VLLM, OURS):
            clients.ask(url, "/script", {"step_s": options.step_ms / 1000.0})
            seen = clients.ours(url, **load)[0] if name == OURS else clients.vllm(url, folder, **load)
            figures[name].append(per_100k(seen.cpu_s, seen.tokens))
            print(f"  pair {number + 1}: {name:<18} {figures[name][-1]:6.2f} s per 100,000 of {seen.tokens} tokens, "
                  f"{seen.failed} failed", flush=True)  # fmt: skip
    for name, values in figures.items():
        print(f"{name:<18} median {np.median(values):.2f} s, {min(values):.2f} to {max(values):.2f}")
    ratios = np.array(figures[OURS]) / np.array(figures[VLLM])
    print(f"ours / theirs      median {np.median(ratios):.2f}, {ratios.min():.2f} to {ratios.max():.2f}\n")


def arrivals(url: str, options: argparse.Namespace) -> None:
    """Poisson arrivals on one core; late is what was sent after its time.

    "Waited" is the time in which the client was ready to run and something else had its core.
    """
    print(f"Poisson arrivals, {OUTPUT_TOKENS} tokens out at 10 ms each, for {options.seconds:g} s")
    columns = {"asked /s": 9, "got /s": 9, "late p50 ms": 13, "p99 ms": 9, "max ms": 9, "core ran %": 12, "waited %": 9}
    print("".join(f"{name:>{width}}" for name, width in columns.items()) + f"{'failed':>8}")
    sustained = 0.0
    for rate in options.rates:
        clients.ask(url, "/script", {"step_s": 0.01, "in_steps": False, "prefill_s": 0.02})
        load = {"requests": int(rate * options.seconds), "per_s": rate, "prompt_tokens": 128}
        _, said = clients.ours(url, core=CLIENT_CORE, output_tokens=OUTPUT_TOKENS, warm_ups=int(rate), **load)
        late_ms = np.array(said["late_s"]) * 1000.0
        p99 = float(np.percentile(late_ms, 99))
        got, ran, waited = (value / said["wall_s"] for value in (len(late_ms), said["cpu_s"], said["waited_s"]))
        print(f"{rate:>9g}{got:>9.0f}{np.median(late_ms):>13.2f}{p99:>9.2f}{late_ms.max():>9.2f}{100 * ran:>12.0f}"
              f"{100 * waited:>9.0f}{said['failed']:>8}", flush=True)  # fmt: skip
        if p99 < LATE_MS and said["failed"] == 0:
            sustained = rate
    print(f"sustained with P99 below {LATE_MS:g} ms: {sustained:g} arrivals/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="0 leaves this part out")
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--in-flight", type=int, default=128)
    parser.add_argument("--step-ms", type=float, default=40.0)
    parser.add_argument("--rates", default="100,200,300,400,600", type=lambda text: [float(n) for n in text.split(",")])
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    print(clients.versions())
    with tempfile.TemporaryDirectory() as folder, clients.scripted_server(SERVER_CORE) as url:
        if options.pairs:
            pairs(url, Path(folder), options)
        arrivals(url, options)


if __name__ == "__main__":
    main()
