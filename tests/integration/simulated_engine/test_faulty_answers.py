"""Every scripted fault of an answer, of `/health`, of `/metrics` and of the log, seen from outside."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from optimizer.engine.simulated.companions import FOREIGN_MODEL
from optimizer.engine.simulated.faults import FAULTS, Fault
from optimizer.engine.simulated.step_time import OVERHEAD_S

USAGE = {"stream_options": {"include_usage": True}}


async def test_slow_stream(start):
    async with start(faults=[{"fault": "slow_stream", "after_requests": 1}]) as server:
        await server.complete([1], 1)
        assert (await server.stream(50)).lasted_s >= 49 * FAULTS[Fault.SLOW_STREAM].amount * OVERHEAD_S / 20


async def test_truncated_streams_end_without_done(start):
    async with start(faults=[{"fault": "truncated_sse"}]) as server:
        streamed = await server.stream(10)
        assert (streamed.status, streamed.tokens, streamed.done) == (200, 5, False)


@pytest.mark.parametrize(("fault", "status"), [(Fault.HTTP_500_BURST, 500), (Fault.HTTP_503_BURST, 503)])
async def test_bursts_of_http_errors_pass(start, fault, status):
    async with start(faults=[{"fault": fault, "after_requests": 1}]) as server:
        burst = 10
        statuses = [(await server.stream(1)).status for _ in range(burst + 2)]
        assert statuses == [200] + [status] * burst + [200]


async def test_garbage_metrics(start):
    async with start(faults=[{"fault": "garbage_metrics"}]) as server:
        async with server.http.get(f"{server.url}/metrics") as answer:
            assert answer.status == 200
            body = (await answer.read()).decode(errors="replace")
        with pytest.raises(ValueError, match="invalid metric name"):
            list(text_string_to_metric_families(body))


async def test_a_metric_can_be_missing_while_the_others_stand(start):
    async with start(faults=[{"fault": "missing_metric", "name": "vllm:kv_cache_usage_perc"}]) as server:
        metrics = await server.metrics()
        assert "kv_cache_usage_perc" not in metrics
        assert metrics["num_requests_running"] == 0


async def test_a_slow_health_is_late_and_generation_goes_on(start):
    async with start(faults=[{"fault": "slow_health", "after_requests": 0, "amount": 60}]) as server:
        assert (await server.stream(3)).tokens == 3
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await server.health()
        assert (await server.stream(3)).tokens == 3


async def test_a_short_answer_stops_early_and_says_so(start):
    async with start(faults=[{"fault": "short_answer", "amount": 0.3}]) as server:
        streamed = await server.stream(10, **USAGE)
        assert (streamed.tokens, streamed.finish_reason, streamed.done) == (3, "stop", True)
        assert streamed.chunks[-1]["usage"]["completion_tokens"] == 3


async def test_an_error_in_mid_stream_is_followed_by_done(start):
    async with start(faults=[{"fault": "sse_error"}]) as server:
        streamed = await server.stream(10, **USAGE)
        assert (streamed.status, streamed.tokens, streamed.done) == (200, 5, True)
        assert streamed.chunks[-1]["error"]["code"] == 500
        assert not any("usage" in chunk for chunk in streamed.chunks)

        async def nothing_runs():
            return (await server.metrics())["num_requests_running"] == 0

        await server.until(nothing_runs)


@pytest.mark.parametrize(
    ("flags", "faults"),
    [(["--stream-interval", "4"], []), ([], [{"fault": "bundled_tokens"}])],
)
async def test_bundled_tokens_come_first_alone_and_then_together(start, flags, faults):
    async with start(*flags, faults=faults) as server:
        options = {"include_usage": True, "continuous_usage_stats": True}
        streamed = await server.stream(10, stream_options=options, return_token_ids=True)
        *chunks, last = streamed.chunks
        assert [len(chunk["choices"][0]["token_ids"]) for chunk in chunks] == [1, 4, 4, 1]
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 5, 9, 10]
        assert last["usage"]["completion_tokens"] == 10


async def test_usage_can_be_missing_though_asked_for(start):
    async with start(faults=[{"fault": "no_usage"}]) as server:
        streamed = await server.stream(3, **USAGE)
        assert (streamed.tokens, streamed.done) == (3, True)
        assert not any("usage" in chunk for chunk in streamed.chunks)


async def test_html_in_place_of_an_answer(start):
    async with (
        start(faults=[{"fault": "html_answer"}]) as server,
        server.http.post(f"{server.url}/v1/completions", json={"prompt": [1]}) as answer,
    ):
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert "<html>" in await answer.text()


async def test_a_foreign_model_name_answers_and_ours_is_unknown(start):
    async with start("--served-model-name", "nonce", faults=[{"fault": "foreign_model"}]) as server:
        async with server.http.get(f"{server.url}/v1/models") as answer:
            assert [card["id"] for card in (await answer.json())["data"]] == [FOREIGN_MODEL]
        status, _ = await server.post("/v1/completions", {"model": "nonce", "prompt": [1]})
        assert status == 404


async def test_a_silent_log_says_nothing_from_start_to_end(start):
    async with start(faults=[{"fault": "silent_log"}, {"fault": "oom_under_load"}]) as server:
        await server.stream(5)
        assert await server.exit_status() == 0
        assert server.log_file.read_bytes() == b""


async def test_a_flooded_log_is_as_large_as_asked_for(start):
    async with start(faults=[{"fault": "flood_log", "amount": 3}]) as server:
        content = server.log_file.read_bytes()
        assert 3 * 2**20 <= len(content) < 3 * 2**20 + 5000
        assert max(map(len, content.splitlines())) < 1024
        assert b"Application startup complete." in content


async def test_a_log_with_broken_utf8_is_no_text(start):
    async with start(faults=[{"fault": "bad_utf8_log"}]) as server:
        content = server.log_file.read_bytes()
        with pytest.raises(UnicodeDecodeError):
            content.decode()
        assert "Application startup complete." in content.decode(errors="replace")
