"""What EngineCore does before it can serve, in vLLM's words, and the faults that strike meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import time

from optimizer.engine.simulated import vllm_log
from optimizer.engine.simulated.companions import leave_daemon
from optimizer.engine.simulated.fault_script import FaultWatch
from optimizer.engine.simulated.faults import Fault
from optimizer.engine.simulated.kv_budget import KvPlan, available_bytes, plan_kv_pool
from optimizer.engine.simulated.log_faults import MIB
from optimizer.engine.simulated.process_name import set_process_name
from optimizer.engine.simulated.settings import EngineSettings
from optimizer.engine.simulated.vllm_log import ENGINE_CORE, StartupFailure, log

PROCESS_NAME = "VLLM::EngineCore"
_PROGRESS_EVERY_S = 0.25


def become_engine_core(faults: FaultWatch) -> None:
    """Name, signals and session of the process; Ctrl-C is the API server's to act on."""
    set_process_name(PROCESS_NAME)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ignore_sigterm = faults.scripts(Fault.IGNORE_SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore_sigterm else signal.SIG_DFL)
    if faults.scripts(Fault.ESCAPE_GROUP):
        os.setsid()
    if faults.scripts(Fault.DAEMON_CHILD):
        leave_daemon(int(faults.amount(Fault.DAEMON_CHILD) * MIB))


def load(settings: EngineSettings, faults: FaultWatch) -> KvPlan | StartupFailure:
    """Sizes the KV pool as if there were a model and a GPU; ends the process where a fault says so."""
    log(ENGINE_CORE, f"Initializing a V1 LLM engine with config: model={settings.model!r}", origin="core.py:1")
    _take_time(faults)
    if faults.wait_for_start_fault(Fault.DIE_LOADING):
        sys.exit(1)
    if faults.wait_for_start_fault(Fault.GPU_BUSY):
        return vllm_log.device_is_busy(settings.device_bytes, settings.gpu_memory_utilization)
    if faults.wait_for_start_fault(Fault.OOM_LOADING):
        return StartupFailure(vllm_log.OUT_OF_MEMORY)
    weights_gib = settings.weight_bytes / vllm_log.GIB
    log(ENGINE_CORE, f"Model loading took {weights_gib:.2f} GiB memory and 0.01 seconds", origin="model_runner.py:1")
    if faults.wait_for_start_fault(Fault.KV_TOO_SMALL):
        needed = settings.max_model_len * settings.kv_bytes_per_token
        return vllm_log.kv_cache_too_small(settings.max_model_len, needed, needed // 2, settings.max_model_len // 2)
    available_gib = available_bytes(settings) / vllm_log.GIB
    log(ENGINE_CORE, f"Available KV cache memory: {available_gib:.2f} GiB", origin="gpu_worker.py:1")
    plan = plan_kv_pool(settings)
    if isinstance(plan, KvPlan):
        size = vllm_log.kv_cache_size(plan.pool_tokens, plan.max_model_len, plan.max_concurrency)
        log(ENGINE_CORE, size, origin="kv_cache_utils.py:1")
        log(ENGINE_CORE, "init engine (profile, create kv cache, warmup model) took 0.01 s", origin="core.py:1")
    return plan


def _take_time(faults: FaultWatch) -> None:
    if faults.wait_for_start_fault(Fault.NEVER_READY):
        while True:
            time.sleep(3600)
    if faults.wait_for_start_fault(Fault.SLOW_START):
        _load_slowly(faults.amount(Fault.SLOW_START))
    if faults.wait_for_start_fault(Fault.BUSY_START):
        deadline_s = time.monotonic() + faults.amount(Fault.BUSY_START)
        while time.monotonic() < deadline_s:
            sum(range(10_000))


def _load_slowly(duration_s: float) -> None:
    begun_s = time.monotonic()
    while (passed_s := time.monotonic() - begun_s) < duration_s:
        share = passed_s / duration_s
        log(ENGINE_CORE, f"Loading safetensors checkpoint shards: {share:4.0%} Completed", origin="weight_utils.py:1")
        time.sleep(min(_PROGRESS_EVERY_S, duration_s - passed_s))
