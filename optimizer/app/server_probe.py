"""Looks at a server that somebody else runs, before any load: is it one, which models has it, does it let us in."""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.errors import HostError, InputError

_LIMIT_S = 10.0
_SHOWN_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of `/v1/models`.

    Attributes:
        name: To put into requests.
        root: Where the server says that the model lies; None when it does not.
        max_model_len: Longest request in tokens; None when it does not say.
    """

    name: str
    root: str | None = None
    max_model_len: int | None = None


def base_url(text: str) -> str:
    """The server's address without a trailing slash or `/v1`.

    Raises:
        InputError: It is no http(s) URL, or holds a password.
    """
    address = text.strip().rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"--endpoint: this is no address of a server: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InputError(f"--endpoint {text}: this is no address of a server", hint="such as http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise InputError("--endpoint: the address holds a password", hint="put the key into a variable: --api-key-env")
    return address


def is_loopback(address: str) -> bool:
    """Whether the server is on this host by its address alone; no name is looked up."""
    host = urlsplit(address).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def api_key(variable: str | None) -> str | None:
    """The key that a variable of the environment holds.

    Raises:
        InputError: It is not set.
    """
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key:
        raise InputError(f"--api-key-env {variable}: this variable is not set", hint=f"export {variable}=…")
    return key


async def served_models(address: str, key: str | None) -> list[ServedModel] | None:
    """What the server serves; None when it has no list.

    Raises:
        HostError: Nobody answers, or it is no server of this kind.
        InputError: It wants another key.
    """
    endpoint = EngineEndpoint(address, "", key)
    url, limit = f"{address}/v1/models", aiohttp.ClientTimeout(total=_LIMIT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit, headers=endpoint.headers) as session,
            session.get(url) as answer,
        ):
            status, kind, said = answer.status, answer.content_type, await answer.text(errors="replace")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise HostError(
            f"no server answers at {address}: {_why_not(error)}", hint="is it up, and is this its address?"
        ) from None
    if status in (401, 403):
        told = "the server wants a key" if key is None else "the server refuses the key"
        raise InputError(
            f"{url}: HTTP {status}: {told}", hint="name the variable that holds its key with --api-key-env"
        )
    if status == 404 and "html" not in kind:
        return None
    try:
        return _models(json.loads(said))
    except (ValueError, KeyError, TypeError, AttributeError):
        shown = " ".join(said.split())[:_SHOWN_CHARACTERS]
        raise HostError(
            f"{url}: HTTP {status}, {kind}: this is no server of the OpenAI API: {shown}",
            hint="give the address under which /v1/models answers in JSON",
        ) from None


def _why_not(error: aiohttp.ClientError | TimeoutError) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        # asyncio puts the address in place of the reason; of a name that is not known the code is no errno.
        number = error.os_error.errno or 0
        return os.strerror(number) if number > 0 else error.os_error.strerror or str(error)
    return str(error) or f"no answer in {_LIMIT_S:g} s"


def _models(data: Any) -> list[ServedModel]:
    found = []
    for entry in data["data"]:
        longest = entry.get("max_model_len")
        root = entry.get("root")
        found.append(
            ServedModel(
                str(entry["id"]),
                root if isinstance(root, str) else None,
                longest if isinstance(longest, int) else None,
            )
        )
    return found


def choose_model(models: list[ServedModel] | None, wanted: str | None, address: str) -> ServedModel:
    """The model to load.

    Raises:
        InputError: It does not serve the one that was asked for, or there is none or more than one to choose from.
    """
    if models is None:
        if wanted is None:
            raise InputError(f"{address} does not say which models it serves", hint="name one with --model")
        return ServedModel(wanted)
    names = ", ".join(model.name for model in models)
    if wanted is None:
        # Adapters are listed behind the model that they belong to.
        if not models:
            raise InputError(f"{address} serves no model", hint="start it with one")
        return models[0]
    chosen = next((model for model in models if model.name == wanted), None)
    if chosen is None:
        raise InputError(f"--model {wanted}: {address} does not serve it", hint=f"it serves: {names or 'none'}")
    return chosen
