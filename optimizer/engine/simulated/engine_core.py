"""The `VLLM::EngineCore` process: loads, then runs the scheduler in real time.

It talks to the API server in JSON lines over a socket:

    in    {"op": "add", "id", "prompt", "max_tokens", "cache_salt"}  {"op": "abort", "id"}
          {"op": "reset_prefix_cache"}
    out   {"ready": {…KvPlan}}  {"reset": bool}
          {"outputs": [[id, [token, …], finished, cached_tokens], …], "stats": {…}, "step": [began, ended, …] or null}

Like vLLM's, it does not notice that its parent is gone: it stays, idle, until a signal ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from dataclasses import asdict

from optimizer.engine.simulated import vllm_log
from optimizer.engine.simulated.fault_script import FaultWatch
from optimizer.engine.simulated.faults import Fault
from optimizer.engine.simulated.kv_budget import KvPlan
from optimizer.engine.simulated.loading import become_engine_core, load
from optimizer.engine.simulated.request_times import StepTiming
from optimizer.engine.simulated.scheduler import Scheduler
from optimizer.engine.simulated.settings import EngineSettings
from optimizer.engine.simulated.step import ScheduledStep, SchedulerLimits, SchedulerStats, StepOutput
from optimizer.engine.simulated.step_time import StepTimeModel
from optimizer.engine.simulated.vllm_log import ENGINE_CORE, StartupFailure, log, log_traceback

MAX_LINE_BYTES = 2**26
"""Longest message; a prompt of a million tokens fits."""


def run_engine_core(settings: EngineSettings, faults: FaultWatch, channel: socket.socket) -> None:
    """Body of the process; never returns while the engine lives."""
    become_engine_core(faults)
    plan = load(settings, faults)
    if isinstance(plan, StartupFailure):
        log(ENGINE_CORE, vllm_log.CORE_FAILED_TO_START, level="ERROR", origin="core.py:1")
        log_traceback(ENGINE_CORE, plan.text)
        sys.exit(1)
    asyncio.run(_EngineCore(settings, plan, faults, channel).run())


def make_scheduler(settings: EngineSettings, plan: KvPlan) -> Scheduler:
    """The scheduler of an engine with these settings."""
    speculation = settings.speculation
    limits = SchedulerLimits(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=plan.max_model_len,
        block_size=settings.block_size,
        num_gpu_blocks=plan.num_gpu_blocks,
        enable_prefix_caching=settings.enable_prefix_caching,
        vocab_size=settings.shape.vocab_size,
        speculative_tokens=0 if speculation is None else speculation.tokens,
        acceptance=settings.acceptance,
    )
    draft_pass_s = 0.0 if speculation is None else speculation.pass_s
    return Scheduler(limits, StepTimeModel(settings.speed, settings.kv_element_bytes, draft_pass_s))


class _EngineCore:
    """The scheduler in real time: each step is waited for, then its tokens are sent."""

    def __init__(self, settings: EngineSettings, plan: KvPlan, faults: FaultWatch, channel: socket.socket) -> None:
        self._scheduler = make_scheduler(settings, plan)
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
            case {
                "op": "add",
                "id": str(request_id),
                "prompt": list(prompt),
                "max_tokens": int(max_tokens),
                "cache_salt": str(cache_salt),
            }:
                self._faults.note_request()
                self._scheduler.add(request_id, prompt, max_tokens, cache_salt)
                self._work.set()
            case {"op": "abort", "id": str(request_id)}:
                self._scheduler.abort(request_id)
                self._send_step([], None)
            case {"op": "reset_prefix_cache"}:
                self._send({"reset": self._scheduler.reset_prefix_cache()})

    async def _step_for_ever(self) -> None:
        while True:
            if not self._scheduler.has_work:
                self._work.clear()
                await self._work.wait()
                self._step_end_s = time.monotonic()
            await self._strike_faults()
            began_s = time.monotonic()
            step = self._scheduler.schedule()
            await self._wait_for_step_end(step.duration_s)
            self._send_step(self._scheduler.complete(step), _timing(step, began_s))

    async def _wait_for_step_end(self, duration_s: float) -> None:
        """Steps follow each other on a schedule of their own, so that late wake-ups do not add up."""
        slow = self._faults.amount(Fault.SLOW_STREAM) if self._faults.due(Fault.SLOW_STREAM) else 1.0
        self._step_end_s += duration_s * slow
        await asyncio.sleep(max(0.0, self._step_end_s - time.monotonic()))

    async def _strike_faults(self) -> None:
        if self._faults.due(Fault.OOM_UNDER_LOAD):
            log(ENGINE_CORE, vllm_log.CORE_FATAL, level="ERROR", origin="core.py:1")
            log_traceback(ENGINE_CORE, vllm_log.OUT_OF_MEMORY)
            os._exit(1)
        if self._faults.due(Fault.DIE_SERVING):
            os._exit(1)
        if self._faults.due(Fault.HANG_HEALTH_200):
            await asyncio.Event().wait()

    def _send_step(self, outputs: list[StepOutput], timing: StepTiming | None) -> None:
        message: dict[str, object] = {
            "outputs": [_values(output) for output in outputs],
            "stats": {name: getattr(self._scheduler.stats, name) for name in SchedulerStats.__slots__},
            "step": None if timing is None else _values(timing),
        }
        self._send(message)

    def _send(self, message: dict[str, object]) -> None:
        if not self._parent_gone.is_set():
            self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def _values(record: StepOutput | StepTiming) -> list[object]:
    """The fields in order; `dataclasses.astuple` copies every list, once a step."""
    return [getattr(record, name) for name in record.__slots__]


def _timing(step: ScheduledStep, began_s: float) -> StepTiming:
    return StepTiming(began_s, time.monotonic(), step.admitted, step.preempted)
