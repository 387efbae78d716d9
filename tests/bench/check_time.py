"""How long `check` takes on the command of the texts, once the flags of the installed vLLM have been read.

Usage: python -m tests.bench.check_time [RUNS]
"""

from __future__ import annotations

import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

from tests.flag_catalogues import TEXTS_COMMAND


def main(runs: int) -> None:
    """Print medians and ranges of wall-clock and processor time."""
    with tempfile.TemporaryDirectory() as bytecode:
        # An installed package has its bytecode.
        env = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "optimizer", "check", "--", *shlex.split(TEXTS_COMMAND)]
        subprocess.run(command, capture_output=True, check=False, env=env)  # reads the flags where that is due
        wall_s, cpu_s = [], []
        for _ in range(runs):
            before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            done = subprocess.run(command, capture_output=True, check=False, env=env)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if done.returncode != 2:
                sys.exit(f"check ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
            wall_s.append(time.monotonic() - begun_s)
            cpu_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    for name, values in (("wall clock", wall_s), ("processor", cpu_s)):
        print(f"{name}: median {statistics.median(values):.2f} s, {min(values):.2f} to {max(values):.2f} s, n {runs}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
