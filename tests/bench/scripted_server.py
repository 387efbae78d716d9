"""A server that streams completions at times it writes down: the truth that clients are held against.

    python tests/bench/scripted_server.py [CORE]     prints its port, serves until its standard input closes

It speaks as much HTTP/1.1 as the benchmarks need, and answers /v1/completions byte for byte in vLLM's shape, one HTTP
chunk an event. `POST /script` (JSON: the fields of `Script`) sets how it answers and forgets its log; `GET /log` gives
for each request its number, when it came, and when each chunk with tokens was written, on CLOCK_MONOTONIC, which every
process of a host shares. A time is read just before the write, which hands the bytes to the receiving socket.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

ASKED = re.compile(rb'"max_tokens": ?([0-9]+)')
CONTINUOUS = re.compile(rb'"continuous_usage_stats": ?true')
PREFILL: list[float] = np.exp(0.5 * np.random.default_rng(0).standard_normal(10_007)).tolist()
PROMPT_TOKENS = 128
"""What usage reports, whatever was sent."""


@dataclass(frozen=True, slots=True)
class Script:
    """How to answer.

    Attributes:
        step_s: Time between two chunks of an answer.
        in_steps: All answers get their chunks at the same moments, as from an engine's steps; else each at its own.
        prefill_s: Median time before the first chunk; log-normal with a sigma of 0.5. 0 answers at once.
        tokens_per_chunk: Tokens in each chunk.
        fault: What every `fault_every`th answer does: "error" (an error object after the 4th chunk), "cut" (the
            response ends after the 4th, without [DONE]), "short" (half the tokens, then a proper end) or "503".
        fault_every: 0 for no faults.
    """

    step_s: float = 0.05
    in_steps: bool = True
    prefill_s: float = 0.1
    tokens_per_chunk: int = 1
    fault: str = ""
    fault_every: int = 0


class Answer:
    """One answer under way: what is left of it, and when its parts were written."""

    def __init__(
        self, number: int, body: bytes, received_s: float, transport: asyncio.Transport, script: Script
    ) -> None:
        self.number, self.transport, self.script, self.received_s = number, transport, script, received_s
        self.written_s: list[float] = []
        self.tokens = 0
        # Not parsed: what a burst of requests costs here would be taken for a delay of the client.
        self.wanted = int(ASKED.search(body)[1])
        self.continuous = CONTINUOUS.search(body) is not None
        self.prompt_tokens = PROMPT_TOKENS
        self.fault = script.fault if script.fault_every and number % script.fault_every == 0 else ""
        self.next_s = received_s + script.prefill_s * PREFILL[number % len(PREFILL)]
        if self.fault == "short":
            self.wanted //= 2

    def write_chunk(self) -> bool:
        """Writes the next chunk; whether there is more to come."""
        if self.transport.is_closing():
            return False
        if self.fault in ("error", "cut") and len(self.written_s) == 4:
            error = event(b'{"error":{"message":"scripted","type":"InternalServerError","code":500}}')
            self.transport.write((error if self.fault == "error" else b"") + b"0\r\n\r\n")
            return False
        self.tokens = min(self.wanted, self.tokens + self.script.tokens_per_chunk)
        chunk = token_chunk(self.prompt_tokens, self.tokens, self.continuous, self.tokens == self.wanted)
        at_s = time.monotonic()
        self.transport.write(chunk)
        self.written_s.append(at_s)
        if self.tokens < self.wanted:
            return True
        self.transport.write(last_chunks(self.prompt_tokens, self.tokens))
        return False


def event(data: bytes) -> bytes:
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


def usage(prompt_tokens: int, tokens: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + tokens, "completion_tokens": tokens}


@lru_cache(maxsize=100_000)
def token_chunk(prompt_tokens: int, tokens: int, continuous: bool, last: bool) -> bytes:
    choice = {"index": 0, "text": " word", "logprobs": None, "finish_reason": "length" if last else None,
              "stop_reason": None, "prompt_token_ids": None, "token_ids": None}  # fmt: skip
    body = {"id": "cmpl-0123456789abcdef0123456789abcdef", "object": "text_completion", "created": 1800000000,
            "model": "scripted", "choices": [choice]}  # fmt: skip
    if continuous:
        body["usage"] = usage(prompt_tokens, tokens)
    return event(json.dumps(body, separators=(",", ":")).encode())


@lru_cache(maxsize=100_000)
def last_chunks(prompt_tokens: int, tokens: int) -> bytes:
    body = {"id": "cmpl-0123456789abcdef0123456789abcdef", "object": "text_completion", "created": 1800000000,
            "model": "scripted", "choices": [], "usage": usage(prompt_tokens, tokens)}  # fmt: skip
    return event(json.dumps(body, separators=(",", ":")).encode()) + event(b"[DONE]") + b"0\r\n\r\n"


class Server:
    """Holds the script, the log and the answers under way."""

    def __init__(self) -> None:
        self.script = Script()
        self.answers: list[Answer] = []
        self.under_way: list[Answer] = []
        self.next_step_s = 0.0

    def begin(self, body: bytes, received_s: float, transport: asyncio.Transport) -> None:
        answer = Answer(len(self.answers) + 1, body, received_s, transport, self.script)
        self.answers.append(answer)
        if answer.fault == "503":
            transport.write(response(503, b'{"error":"scripted"}'))
            return
        transport.write(
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        if self.script.in_steps:
            self.under_way.append(answer)
            if len(self.under_way) == 1:
                self.next_step_s = time.monotonic() + self.script.step_s
                asyncio.get_running_loop().call_at(self.next_step_s, self.step)
        else:
            asyncio.get_running_loop().call_at(answer.next_s, self.own_step, answer)

    def step(self) -> None:
        """Writes a chunk to every answer whose prefill is over."""
        now_s = time.monotonic()
        self.under_way = [answer for answer in self.under_way if answer.next_s > now_s or answer.write_chunk()]
        if self.under_way:
            self.next_step_s = max(self.next_step_s + self.script.step_s, time.monotonic())
            asyncio.get_running_loop().call_at(self.next_step_s, self.step)

    def own_step(self, answer: Answer) -> None:
        if answer.write_chunk():
            answer.next_s += self.script.step_s
            asyncio.get_running_loop().call_at(answer.next_s, self.own_step, answer)

    def log(self) -> bytes:
        entries = [
            {"number": a.number, "received_s": a.received_s, "written_s": a.written_s, "tokens": a.tokens,
             "tokens_per_chunk": a.script.tokens_per_chunk, "fault": a.fault}
            for a in self.answers
        ]  # fmt: skip
        return json.dumps(entries).encode()


def response(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


class Connection(asyncio.Protocol):
    """One client connection; a request at a time."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        received_s = time.monotonic()
        self.buffer += data
        while (ends := self.buffer.find(b"\r\n\r\n")) >= 0:
            line, *fields = self.buffer[:ends].split(b"\r\n")
            lengths = (f for f in fields if f.lower().startswith(b"content-length:"))
            length = int(next(lengths, b":0").partition(b":")[2])
            if len(self.buffer) < ends + 4 + length:
                return
            body, self.buffer = self.buffer[ends + 4 : ends + 4 + length], self.buffer[ends + 4 + length :]
            self.answer(line.split()[1], body, received_s)

    def answer(self, path: bytes, body: bytes, received_s: float) -> None:
        if path == b"/v1/completions":
            self.server.begin(body, received_s, self.transport)
        elif path == b"/script":
            self.server.script = Script(**json.loads(body))
            self.server.answers = []
            gc.collect()
            self.transport.write(response(200, json.dumps(asdict(self.server.script)).encode()))
        elif path == b"/log":
            self.transport.write(response(200, self.server.log()))
        else:
            self.transport.write(response(404, b"{}"))


async def main() -> None:
    gc.disable()
    if len(sys.argv) > 1:
        os.sched_setaffinity(0, {int(sys.argv[1])})
    loop = asyncio.get_running_loop()
    server = Server()
    listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=2048)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
