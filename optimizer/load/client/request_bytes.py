"""One planned request as the bytes of an HTTP request."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.errors import InputError
from optimizer.load.planned import PlannedRequest


class RequestWriter:
    """Writes requests to one endpoint.

    Attributes:
        host: Name or address to connect to.
        port: Its TCP port.
        tls: Whether the URL says https.

    Raises:
        InputError: The endpoint's URL is none that can be asked.
    """

    def __init__(self, endpoint: EngineEndpoint) -> None:
        parts = urlsplit(endpoint.base_url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if parts.scheme not in ("http", "https") or not host or not endpoint.base_url.isascii():
            raise InputError(
                f"the endpoint's address is no http(s) URL: {endpoint.base_url!r}",
                hint="give one such as http://127.0.0.1:8000",
            )
        self.host, self.tls = host, parts.scheme == "https"
        self.port = port or (443 if self.tls else 80)
        self._model = endpoint.model
        self._path = parts.path.rstrip("/")
        fields = {
            "Host": parts.netloc.rpartition("@")[2],
            **endpoint.headers,
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
        }
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode("latin-1")

    def write(self, request: PlannedRequest) -> bytes:
        """Head and body."""
        body = json.dumps(self._body(request), separators=(",", ":")).encode()
        path = self._path + ("/v1/chat/completions" if isinstance(request.prompt, tuple) else "/v1/completions")
        return b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (path.encode(), self._fields, len(body), body)

    def _body(self, request: PlannedRequest) -> dict[str, Any]:
        prompt = request.prompt
        body: dict[str, Any] = {"model": self._model}
        if isinstance(prompt, tuple):
            body["messages"] = [{"role": message.role, "content": message.content} for message in prompt]
            body["max_completion_tokens"] = request.output_tokens
        else:
            body["prompt"] = prompt
            body["max_tokens"] = request.output_tokens
        if request.exact:
            body["ignore_eos"] = True
        if request.session is not None and isinstance(prompt, list):
            body["return_token_ids"] = True
        return body | {
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **request.extra_body,
        }
