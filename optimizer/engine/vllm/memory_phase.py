"""What an engine was doing when it ran out of memory, from what its log says before."""

from __future__ import annotations

import re

from optimizer.core.failure import MemoryPhase
from optimizer.core.trial import Stage

_OUT_OF_MEMORY = re.compile(r"out of memory|not enough GPU memory|can't allocate memory|not enough memory")
_MARKS = {
    MemoryPhase.WEIGHTS: r"Starting to load model|in load_model\b",
    MemoryPhase.PROFILING: r"Model loading took|in profile_run\b|in determine_available_memory\b",
    MemoryPhase.KV_CACHE: r"Available KV cache memory|in initialize_kv_cache\b|in initialize_from_config\b",
    MemoryPhase.GRAPH_CAPTURE: (
        r"KV cache size: |Capturing .*CUDA graphs|in capture_model\b|in compile_or_warm_up_model\b"
    ),
    MemoryPhase.SERVING: r"Application startup complete|in execute_model\b",
}
"""Messages that end the phase before, and frames of the traceback of the failure itself (`v1/worker/gpu_worker.py`)."""
_MARK = re.compile("|".join(f"(?P<{phase.name}>{marks})" for phase, marks in _MARKS.items()))


def memory_phase(log: str, stage: Stage) -> MemoryPhase | None:
    """The phase of the last mark before the first complaint of memory; SERVING once the engine was ready.

    Returns:
        None when the engine was starting and its log holds no mark.
    """
    if stage is not Stage.LAUNCHING:
        return MemoryPhase.SERVING
    complaint = _OUT_OF_MEMORY.search(log)
    last: MemoryPhase | None = None
    for mark in _MARK.finditer(log, 0, complaint.start() if complaint else len(log)):
        last = MemoryPhase[str(mark.lastgroup)]
    return last
