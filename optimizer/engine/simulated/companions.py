"""Processes that a faulty engine puts beside itself: a daemon that holds memory, a thief that takes its port."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import sys

from optimizer.engine.simulated.process_name import set_process_name

DAEMON_MARK = "autotune-simulated-daemon"
"""Stands in the daemon's command line, with the mark of its launch: its empty environment tells nothing."""
FOREIGN_MODEL = "somebody-elses-model"
_DAEMON = """
import ctypes, signal, sys, time
ctypes.CDLL(None).prctl(15, b"VLLM::Worker", 0, 0, 0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = bytearray(b"x") * int(sys.argv[2])
time.sleep(10**9)
"""


def leave_daemon(held_bytes: int) -> None:
    """Starts a process as a daemon does, in its own session and with its parent gone. It holds memory for ever."""
    pid = os.fork()
    if pid != 0:
        os.waitpid(pid, 0)
        return
    os.setsid()
    if os.fork() == 0:
        argv = [sys.executable, "-ISc", _DAEMON, DAEMON_MARK, str(held_bytes), os.environ.get("AUTOTUNE_TRIAL", "")]
        os.execve(sys.executable, argv, {})  # noqa: S606 (our own Python; nothing may stay its parent)
    os._exit(0)


def leave_thief(listener: socket.socket) -> None:
    """Starts a process that serves another model on a bound socket, as a server that was there first would."""
    if os.fork() != 0:
        listener.close()
        return
    set_process_name("foreign-server")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    listener.listen()
    server = http.server.ThreadingHTTPServer(listener.getsockname()[:2], _ForeignServer, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.serve_forever()
    os._exit(0)


class _ForeignServer(http.server.BaseHTTPRequestHandler):
    """Answers 200 to everything."""

    def do_GET(self) -> None:
        cards = [{"id": FOREIGN_MODEL, "object": "model"}] if self.path == "/v1/models" else []
        body = json.dumps({"object": "list", "data": cards}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """A foreign server does not write into our log."""
