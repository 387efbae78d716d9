"""The life of the leader process: bind, start EngineCore, serve, stop. Exit codes are vLLM's."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from multiprocessing.process import BaseProcess
from types import FrameType

from aiohttp import web

from optimizer.engine.simulated import vllm_log
from optimizer.engine.simulated.api_server import VERSION, build_app
from optimizer.engine.simulated.command_line import parse_command_line
from optimizer.engine.simulated.companions import leave_thief
from optimizer.engine.simulated.core_client import CoreClient
from optimizer.engine.simulated.engine_core import run_engine_core
from optimizer.engine.simulated.fault_script import FaultWatch, count_launch, read_script
from optimizer.engine.simulated.faults import Fault
from optimizer.engine.simulated.log_faults import flood_log, write_bad_utf8
from optimizer.engine.simulated.settings import EngineSettings, refusal, resolve_settings
from optimizer.engine.simulated.vllm_log import API_SERVER, log, log_traceback, log_uvicorn, silence

DEATH_GRACE_S = 1.0
"""How long `/health` says 503 after EngineCore's death before the server leaves; vLLM looks every 5 s."""
STOP_GRACE_S = 5.0
"""How long EngineCore may take to end before it is killed."""
_FAULT_POLL_S = 0.01
_SECRET_FLAGS = frozenset({"api-key", "hf-token"})


def serve(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the server until it is stopped or its engine dies, and returns the exit status.

    Raises:
        InputError: The environment variables of the simulation make no sense.
    """
    line = parse_command_line(argv)
    settings = resolve_settings(line, environ)
    launch = count_launch(environ)
    script = tuple(entry for entry in read_script(environ) if entry.applies(settings.flags, launch))
    faults = FaultWatch(script)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if faults.scripts(Fault.IGNORE_SIGTERM) else _leave_quietly)
    signal.signal(signal.SIGINT, _leave_quietly)
    _spoil_log(faults)
    log(API_SERVER, f"vLLM API server version {VERSION}", origin="api_server.py:1")
    shown = {name: "***" if name in _SECRET_FLAGS else value for name, value in line.flags.items()}
    log(API_SERVER, f"non-default args: {shown}", origin="utils.py:1")
    host, port = line.options.host or "127.0.0.1", line.options.port if line.options.port is not None else 8000
    if faults.wait_for_start_fault(Fault.PORT_STOLEN) and (stolen := _bind(host, port)) is not None:
        leave_thief(stolen)
        time.sleep(faults.amount(Fault.PORT_STOLEN))
    listener = None if faults.wait_for_start_fault(Fault.PORT_TAKEN) else _bind(host, port)
    if listener is None:
        log_traceback(API_SERVER, vllm_log.ADDRESS_IN_USE)
        return 1
    refused = refusal(settings)
    if refused is not None:
        log_traceback(API_SERVER, refused.text)
        return 1
    return _serve_with_core(settings, faults, listener)


def _spoil_log(faults: FaultWatch) -> None:
    if faults.wait_for_start_fault(Fault.SILENT_LOG):
        silence()
    if faults.wait_for_start_fault(Fault.FLOOD_LOG):
        flood_log(faults.amount(Fault.FLOOD_LOG))
    if faults.wait_for_start_fault(Fault.BAD_UTF8_LOG):
        write_bad_utf8()


def _leave_quietly(_signum: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def _bind(host: str, port: int) -> socket.socket | None:
    """Binds without listening: connections are refused until the engine has loaded. None if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return listener


def _serve_with_core(settings: EngineSettings, faults: FaultWatch, listener: socket.socket) -> int:
    ours, theirs = socket.socketpair()
    core = multiprocessing.get_context("fork").Process(
        target=_run_core, args=(settings, faults, theirs, (ours, listener)), name="EngineCore"
    )
    core.start()
    try:
        theirs.close()
        return asyncio.run(_Leader(settings, faults, core).run(ours, listener))
    finally:
        _stop(core)


def _run_core(
    settings: EngineSettings, faults: FaultWatch, channel: socket.socket, leaders: tuple[socket.socket, ...]
) -> None:
    """Runs in the child: lets go of what is the leader's, so that its port and its end of the socket close with it."""
    for leaders_socket in leaders:
        leaders_socket.close()
    run_engine_core(settings, faults, channel)


def _stop(core: BaseProcess) -> None:
    core.terminate()
    core.join(STOP_GRACE_S)
    if core.is_alive():
        core.kill()
        core.join()


class _Leader:
    """The API server's event loop."""

    def __init__(self, settings: EngineSettings, faults: FaultWatch, core: BaseProcess) -> None:
        self._settings = settings
        self._faults = faults
        self._core = core
        self._stopping = asyncio.Event()

    async def run(self, channel: socket.socket, listener: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._stopping.set)
        if not self._faults.scripts(Fault.IGNORE_SIGTERM):
            loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        client = CoreClient()
        await client.connect(channel)
        loaded = await self._unless_stopped(client.wait_loaded())
        if loaded is None:
            return 0
        if not loaded:
            log_traceback(API_SERVER, vllm_log.CORE_INIT_FAILED)
            return 1
        await self._serve_until_the_end(client, listener)
        return 0

    async def _serve_until_the_end(self, client: CoreClient, listener: socket.socket) -> None:
        self._faults.restart_clock()
        app = build_app(self._settings, client, self._faults)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        host, port = listener.getsockname()[:2]
        log(API_SERVER, f"Starting vLLM server on http://{host}:{port}", origin="launcher.py:1")
        for _ in range(self._settings.api_servers):
            log_uvicorn("Application startup complete.")
        if self._faults.scripts(Fault.EXIT_SILENTLY):
            self._vanish_when_due()
        if await self._unless_stopped(client.dead.wait()):
            await self._outlive_core()
        log_uvicorn("Shutting down")
        await runner.cleanup()
        log_uvicorn("Application shutdown complete.")

    async def _unless_stopped(self, event: Coroutine[None, None, bool]) -> bool | None:
        """What `event` gives, or None when a signal came first."""
        happened, stopping = asyncio.create_task(event), asyncio.create_task(self._stopping.wait())
        await asyncio.wait({happened, stopping}, return_when=asyncio.FIRST_COMPLETED)
        result = happened.result() if happened.done() and not self._stopping.is_set() else None
        happened.cancel()
        stopping.cancel()
        return result

    async def _outlive_core(self) -> None:
        log(API_SERVER, "Engine core proc EngineCore died unexpectedly, shutting down client.", level="ERROR")
        log(API_SERVER, "AsyncLLM output_handler failed.", level="ERROR", origin="async_llm.py:1")
        log_traceback(API_SERVER, vllm_log.ENGINE_DEAD_ERROR)
        wait_s = None if self._settings.keep_alive_on_engine_death else DEATH_GRACE_S
        await asyncio.wait({asyncio.create_task(self._stopping.wait())}, timeout=wait_s)

    def _vanish_when_due(self) -> None:
        if self._faults.due(Fault.EXIT_SILENTLY):
            self._core.kill()
            os._exit(0)
        asyncio.get_running_loop().call_later(_FAULT_POLL_S, self._vanish_when_due)
