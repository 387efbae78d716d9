"""The `VLLM::EngineCore` process: loads, then runs the scheduler in real time.

It talks to the API server in JSON lines over a socket:

    in    {"op": "add", "id", "prompt", "max_tokens"}  {"op": "abort", "id"}  {"op": "reset_prefix_cache"}
    out   {"ready": {…KvPlan}}  {"outputs": [[id, token, finished, cached_tokens], …], "stats": {…}}  {"reset": bool}

Like vLLM's, it does not notice that its parent is gone: it stays, idle, until a signal ends it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
import time
from dataclasses import asdict, astuple

from optimizer.engine.simulated import vllm_log
from optimizer.engine.simulated.faults import SLOW_STREAM_FACTOR, Fault, FaultWatch
from optimizer.engine.simulated.kv_budget import KvPlan, available_bytes, plan_kv_pool
from optimizer.engine.simulated.scheduler import Scheduler, SchedulerLimits
from optimizer.engine.simulated.settings import EngineSettings
from optimizer.engine.simulated.step_time import StepTimeModel
from optimizer.engine.simulated.vllm_log import ENGINE_CORE, StartupFailure, log, log_traceback

PROCESS_NAME = "VLLM::EngineCore"
MAX_LINE_BYTES = 2**26
"""Longest message; a prompt of a million tokens fits."""
_PR_SET_NAME = 15


def run_engine_core(settings: EngineSettings, faults: FaultWatch, channel: socket.socket) -> None:
    """Body of the process; never returns while the engine lives."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, PROCESS_NAME.encode(), 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ignore_sigterm = faults.scripts(Fault.IGNORE_SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore_sigterm else signal.SIG_DFL)
    if faults.scripts(Fault.ESCAPE_GROUP):
        os.setsid()
    plan = _load(settings, faults)
    if isinstance(plan, StartupFailure):
        log(ENGINE_CORE, vllm_log.CORE_FAILED_TO_START, level="ERROR", origin="core.py:1")
        log_traceback(ENGINE_CORE, plan.text)
        sys.exit(1)
    asyncio.run(_EngineCore(settings, plan, faults, channel).run())


def _load(settings: EngineSettings, faults: FaultWatch) -> KvPlan | StartupFailure:
    log(ENGINE_CORE, f"Initializing a V1 LLM engine with config: model={settings.model!r}", origin="core.py:1")
    if faults.wait_for_start_fault(Fault.NEVER_READY):
        while True:
            time.sleep(3600)
    if faults.wait_for_start_fault(Fault.DIE_LOADING):
        sys.exit(1)
    if faults.wait_for_start_fault(Fault.OOM_LOADING):
        return StartupFailure(vllm_log.OUT_OF_MEMORY)
    weights_gib = settings.shape.weight_bytes / vllm_log.GIB
    log(ENGINE_CORE, f"Model loading took {weights_gib:.2f} GiB memory and 0.01 seconds", origin="model_runner.py:1")
    if faults.wait_for_start_fault(Fault.KV_TOO_SMALL):
        needed = settings.max_model_len * settings.shape.kv_bytes_per_token
        return vllm_log.kv_cache_too_small(settings.max_model_len, needed, needed // 2, settings.max_model_len // 2)
    available_gib = available_bytes(settings) / vllm_log.GIB
    log(ENGINE_CORE, f"Available KV cache memory: {available_gib:.2f} GiB", origin="gpu_worker.py:1")
    plan = plan_kv_pool(settings)
    if isinstance(plan, KvPlan):
        size = vllm_log.kv_cache_size(plan.pool_tokens, plan.max_model_len)
        log(ENGINE_CORE, size, origin="kv_cache_utils.py:1")
        log(ENGINE_CORE, "init engine (profile, create kv cache, warmup model) took 0.01 s", origin="core.py:1")
    return plan


class _EngineCore:
    """The scheduler in real time: each step is waited for, then its tokens are sent."""

    def __init__(self, settings: EngineSettings, plan: KvPlan, faults: FaultWatch, channel: socket.socket) -> None:
        limits = SchedulerLimits(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=plan.max_model_len,
            block_size=settings.block_size,
            num_gpu_blocks=plan.num_gpu_blocks,
            enable_prefix_caching=settings.enable_prefix_caching,
            vocab_size=settings.shape.vocab_size,
        )
        self._scheduler = Scheduler(limits, StepTimeModel(settings.speed))
        self._plan = plan
        self._faults = faults
        self._channel = channel
        self._work = asyncio.Event()
        self._parent_gone = asyncio.Event()
        self._step_end_s = 0.0

    async def run(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._channel, limit=MAX_LINE_BYTES)
        self._faults.restart_clock()
        self._send({"ready": asdict(self._plan)})
        receiving = asyncio.create_task(self._receive(reader))
        stepping = asyncio.create_task(self._step_for_ever())
        gone = asyncio.create_task(self._parent_gone.wait())
        done, _ = await asyncio.wait({receiving, stepping, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        stepping.cancel()
        await asyncio.Event().wait()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._obey(json.loads(line))
        except ConnectionError:
            pass
        self._parent_gone.set()

    def _obey(self, message: dict[str, object]) -> None:
        match message:
            case {"op": "add", "id": str(request_id), "prompt": list(prompt), "max_tokens": int(max_tokens)}:
                self._faults.note_request()
                self._scheduler.add(request_id, prompt, max_tokens)
                self._work.set()
            case {"op": "abort", "id": str(request_id)}:
                self._scheduler.abort(request_id)
                self._send_step([])
            case {"op": "reset_prefix_cache"}:
                self._send({"reset": self._scheduler.reset_prefix_cache()})

    async def _step_for_ever(self) -> None:
        while True:
            if not self._scheduler.has_work:
                self._work.clear()
                await self._work.wait()
                self._step_end_s = time.monotonic()
            await self._strike_faults()
            step = self._scheduler.schedule()
            await self._wait_for_step_end(step.duration_s)
            outputs = self._scheduler.complete(step)
            self._send_step([astuple(output) for output in outputs])

    async def _wait_for_step_end(self, duration_s: float) -> None:
        """Steps follow each other on a schedule of their own, so that late wake-ups do not add up."""
        slow = SLOW_STREAM_FACTOR if self._faults.due(Fault.SLOW_STREAM) else 1.0
        self._step_end_s += duration_s * slow
        await asyncio.sleep(max(0.0, self._step_end_s - time.monotonic()))

    async def _strike_faults(self) -> None:
        if self._faults.due(Fault.OOM_UNDER_LOAD):
            log(ENGINE_CORE, vllm_log.CORE_FATAL, level="ERROR", origin="core.py:1")
            log_traceback(ENGINE_CORE, vllm_log.OUT_OF_MEMORY)
            os._exit(1)
        if self._faults.due(Fault.HANG_HEALTH_200):
            await asyncio.Event().wait()

    def _send_step(self, outputs: list[tuple[object, ...]]) -> None:
        self._send({"outputs": outputs, "stats": asdict(self._scheduler.stats)})

    def _send(self, message: dict[str, object]) -> None:
        if not self._parent_gone.is_set():
            self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
