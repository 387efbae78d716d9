"""A server that somebody else runs: its address, its models, and what it says of itself."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from aiohttp import web

from optimizer.app.server_probe import ServedModel, api_key, base_url, choose_model, is_loopback, served_models
from optimizer.core.errors import HostError, InputError
from optimizer.host.ports import free_port


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        (" http://127.0.0.1:8000/ ", "http://127.0.0.1:8000"),
        ("http://host:8000/v1/", "http://host:8000"),
        ("https://host/prefix/v1", "https://host/prefix"),
    ],
)
def test_the_address_is_told_from_what_people_paste(text, address):
    assert base_url(text) == address


@pytest.mark.parametrize("text", ["", "host:8000", "ftp://host", "http://", "http://host:port", "http://h/?a=1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InputError, match="--endpoint"):
        base_url(text)


def test_a_password_in_the_address_is_refused_and_not_repeated():
    with pytest.raises(InputError) as told:
        base_url("http://ann:pl4nted@host:8000")
    assert "pl4nted" not in told.value.message + str(told.value.hint)


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("http://localhost:1", True),
        ("http://127.9.9.9:1", True),
        ("http://[::1]:1", True),
        ("http://10.0.0.1:1", False),
        ("http://localhost.example.org", False),
        ("http://127.0.0.1.example.org", False),
        ("http://0.0.0.0:1", False),
    ],
)
def test_loopback_is_told_by_the_address_alone(address, here):
    assert is_loopback(address) is here


def test_the_key_comes_from_a_variable(monkeypatch):
    monkeypatch.setenv("SERVER_KEY", "pl4nted")
    assert api_key("SERVER_KEY") == "pl4nted"
    assert api_key(None) is None
    with pytest.raises(InputError, match="--api-key-env NONE_SUCH"):
        api_key("NONE_SUCH")


TWO = [ServedModel("base", "/models/base", 4096), ServedModel("adapter")]


def test_the_first_model_is_taken_unless_one_is_named():
    assert choose_model(TWO, None, "url") == TWO[0]
    assert choose_model(TWO, "adapter", "url") == TWO[1]
    with pytest.raises(InputError, match="--model none: url does not serve it") as told:
        choose_model(TWO, "none", "url")
    assert told.value.hint == "it serves: base, adapter"


def test_a_server_without_a_list_needs_the_name():
    assert choose_model(None, "m", "url") == ServedModel("m")
    with pytest.raises(InputError, match="does not say which models"):
        choose_model(None, None, "url")
    with pytest.raises(InputError, match="serves no model"):
        choose_model([], None, "url")


@pytest.fixture
async def serve():
    """Starts a server that answers `/v1/models` in one way."""
    runners: list[web.AppRunner] = []

    async def start(answer: Callable[[web.Request], web.Response]) -> str:
        async def models(request: web.Request) -> web.Response:
            return answer(request)

        app = web.Application()
        app.router.add_get("/v1/models", models)
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_the_list_is_read_and_the_key_is_sent(serve):
    asked: list[str | None] = []

    def answer(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Authorization"))
        entry = {"id": "m", "root": "/models/m", "max_model_len": 4096, "more": 1}
        return web.json_response({"data": [entry, {"id": "adapter", "root": None}]})

    address = await serve(answer)
    assert await served_models(address, "key") == [ServedModel("m", "/models/m", 4096), ServedModel("adapter")]
    assert asked == ["Bearer key"]


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (200, "text/html", "<html>welcome</html>"),
        (404, "text/html", "<html>none</html>"),
        (200, "application/json", "[]"),
        (200, "application/json", json.dumps({"data": [{"name": "m"}]})),
        (500, "text/plain", "trouble"),
    ],
)
async def test_something_else_than_such_a_server_is_told(serve, status, kind, body):
    address = await serve(lambda request: web.Response(status=status, content_type=kind, text=body))
    with pytest.raises(HostError, match=rf"HTTP {status}, {kind}: this is no server of the OpenAI API"):
        await served_models(address, None)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(("key", "words"), [(None, "the server wants a key"), ("old", "the server refuses the key")])
async def test_a_key_that_is_wanted_is_asked_for(serve, status, key, words):
    address = await serve(lambda request: web.Response(status=status, text="no"))
    with pytest.raises(InputError, match=f"HTTP {status}: {words}") as told:
        await served_models(address, key)
    assert "--api-key-env" in str(told.value.hint)


async def test_a_server_may_have_no_list(serve):
    address = await serve(lambda request: web.json_response({"error": "no"}, status=404))
    assert await served_models(address, None) is None


async def test_nobody_at_home():
    with pytest.raises(HostError, match="no server answers at"):
        await served_models("http://127.0.0.1:9", None)


async def test_why_nobody_answers_is_said_in_plain_words():
    with pytest.raises(HostError) as told:
        await served_models(f"http://127.0.0.1:{free_port()}", None)
    assert told.value.message.endswith(": Connection refused")
    with pytest.raises(HostError) as told:
        await served_models("http://no-such-host.invalid", None)
    assert "ssl" not in told.value.message
    assert told.value.message.startswith("no server answers at http://no-such-host.invalid: ")
