"""The environment of an engine process: inherited, plus what a trial needs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from optimizer.host.processes import TRIAL_VARIABLE

_OPENMP = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def engine_environment(
    space_env: Mapping[str, str], *, api_key: str, cpu_threads: int | None, marker: str
) -> dict[str, str]:
    """Environment variables of one launch. Never recorded as a whole: it holds what the user's shell holds.

    Args:
        space_env: What the space (or the baseline) sets; wins over what is inherited.
        api_key: Passed here and not as `--api-key`, so that it stands in no argv and no log.
        cpu_threads: OpenMP threads of a CPU engine, whose cores we pin ourselves; None leaves vLLM's own choice.
        marker: Names the study and trial; read from `/proc/PID/environ` when looking for what is ours.
    """
    env = {**os.environ, **space_env}
    env["VLLM_API_KEY"] = api_key
    env["VLLM_SERVER_DEV_MODE"] = "1"  # for POST /reset_prefix_cache; the server listens on loopback only
    env[TRIAL_VARIABLE] = marker
    env["SPT_NOENV"] = "1"  # keeps setproctitle from wiping the marker out of /proc/PID/environ
    env["PYTHONUNBUFFERED"] = "1"
    # torch keeps compiled kernels below TMPDIR, and each launch has a TMPDIR of its own: its cache must outlive that.
    env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"))
    if cpu_threads is not None:
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        env.update(dict.fromkeys(_OPENMP, str(cpu_threads)))
    return env
