"""Endpoints of the simulated engine, and its scheduling seen through them."""

from __future__ import annotations

import asyncio
import json

import aiohttp

from optimizer.engine.simulated.step_time import OVERHEAD_S

TINY_POOL = ("--block-size", "16", "--max-model-len", "128", "--num-gpu-blocks-override", "10")


async def test_a_completion_streams_its_tokens_with_usage(start):
    async with start("--served-model-name", "nonce") as server:
        options = {"include_usage": True, "continuous_usage_stats": True}
        streamed = await server.stream(5, model="nonce", stream_options=options, return_token_ids=True)
        *tokens, last = streamed.chunks
        assert [chunk["usage"]["completion_tokens"] for chunk in tokens] == [1, 2, 3, 4, 5]
        assert [chunk["choices"][0]["finish_reason"] for chunk in tokens] == [None] * 4 + ["length"]
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] == 8
        assert streamed.done
        whole = await server.complete([1, 2, 3], 5)
        assert whole["usage"]["completion_tokens"] == 5
        assert whole["choices"][0]["text"] == "".join(chunk["choices"][0]["text"] for chunk in tokens)
        metrics = await server.metrics()
        assert (metrics["prompt_tokens_total"], metrics["generation_tokens_total"]) == (6, 10)
        assert metrics["request_success_totallength"] == 2
        assert "Maximum concurrency for 8,192 tokens per request" in server.log
        assert "Application startup complete." in server.log
        assert server.key not in server.log


async def test_chat_streams_and_answers(start):
    async with start() as server:
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
        status, whole = await server.post("/v1/chat/completions", body)
        assert (status, len(whole["choices"][0]["message"]["content"])) == (200, 3)
        async with server.http.post(f"{server.url}/v1/chat/completions", json=body | {"stream": True}) as answer:
            events = [line for line in (await answer.text()).splitlines() if line]
        deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events[:-1]]
        assert deltas[0]["role"] == "assistant"
        assert "".join(delta["content"] for delta in deltas) == whole["choices"][0]["message"]["content"]
        assert events[-1] == "data: [DONE]"


async def test_the_key_guards_v1_alone_and_models_show_the_nonce(start):
    async with start("--served-model-name", "nonce", "--max-model-len", "2k") as server:
        async with aiohttp.ClientSession() as stranger:
            statuses = {}
            for path in ("/v1/models", "/health", "/metrics", "/version"):
                async with stranger.get(server.url + path) as answer:
                    statuses[path] = answer.status
        assert statuses == {"/v1/models": 401, "/health": 200, "/metrics": 200, "/version": 200}
        async with server.http.get(f"{server.url}/v1/models") as answer:
            (card,) = (await answer.json())["data"]
        assert (card["id"], card["max_model_len"]) == ("nonce", 2000)
        status, body = await server.post("/v1/completions", {"model": "other", "prompt": [1]})
        assert (status, body["error"]["code"]) == (404, 404)
        async with server.http.post(f"{server.url}/reset_prefix_cache") as answer:
            assert answer.status == 404


async def test_requests_beyond_max_num_seqs_queue(start):
    async with start("--max-num-seqs", "2", speed=5.0) as server:
        requests = [asyncio.create_task(server.stream(5000)) for _ in range(5)]

        async def full():
            metrics = await server.metrics()
            assert metrics["num_requests_running"] <= 2
            return metrics["num_requests_running"] == 2 and metrics["num_requests_waiting"] == 3

        await server.until(full)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        answers = await asyncio.gather(*(server.stream(60) for _ in range(5)))
        assert [answer.tokens for answer in answers] == [60] * 5


async def test_a_tiny_pool_preempts_and_still_answers(start):
    async with start(*TINY_POOL) as server:
        answers = await asyncio.gather(*(server.complete([number] * 16, 100) for number in range(4)))
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [100] * 4
        assert (await server.metrics())["num_preemptions_total"] > 0


async def test_shared_prefixes_hit_until_the_reset(start):
    async with start(VLLM_SERVER_DEV_MODE="1") as server:
        prefix = list(range(64))

        async def hits(tail):
            before = await server.metrics()
            await server.complete(prefix + [tail] * 16, 1)
            after = await server.metrics()
            assert after["prefix_cache_queries_total"] - before["prefix_cache_queries_total"] == 80
            return after["prefix_cache_hits_total"] - before["prefix_cache_hits_total"]

        assert [await hits(100), await hits(101)] == [0, 64]
        assert await server.post("/reset_prefix_cache", None) == (200, {"success": True})
        assert await hits(102) == 0


async def test_speculation_gives_several_tokens_a_step_and_counts_them(start):
    words = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
    async with start(*words, AUTOTUNE_SIM_ACCEPTANCE="1") as server:
        options = {"include_usage": True, "continuous_usage_stats": True}
        streamed = await server.stream(9, stream_options=options)
        *chunks, last = streamed.chunks
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 5, 9]
        assert last["usage"]["completion_tokens"] == 9
        metrics = await server.metrics()
        counted = {name: value for name, value in metrics.items() if name.startswith("spec_decode_num")}
        assert counted["spec_decode_num_drafts_total"] == 2
        assert counted["spec_decode_num_draft_tokens_total"] == 6
        assert counted["spec_decode_num_accepted_tokens_total"] == 6


async def test_histograms_tell_the_times_of_the_requests(start):
    tokens, speed = 200, 2.0
    async with start("--max-num-seqs", "1", speed=speed) as server:
        lasted_s = [answer.lasted_s for answer in await asyncio.gather(server.stream(tokens), server.stream(tokens))]
        metrics = await server.metrics()
        assert metrics["e2e_request_latency_seconds_count"] == 2
        assert metrics["inter_token_latency_seconds_count"] == 2 * (tokens - 1)
        # One waited while the other ran; the client saw it as long, and what the machine added besides.
        alone_s = tokens * OVERHEAD_S / speed
        assert 2.5 * alone_s < metrics["e2e_request_latency_seconds_sum"] < sum(lasted_s)
        assert metrics["request_queue_time_seconds_sum"] > 0.5 * alone_s
        assert metrics["iteration_tokens_total_sum"] == 2 * 3 + 2 * tokens


async def test_usage_in_every_stream_when_the_server_wills_it(start):
    async with start("--enable-force-include-usage") as server:
        streamed = await server.stream(3)
        assert [chunk["usage"]["completion_tokens"] for chunk in streamed.chunks] == [1, 2, 3, 3]


async def test_a_client_that_hangs_up_frees_its_blocks(start):
    async with start(speed=1.0) as server:
        body = {"prompt": [1], "max_tokens": 5000, "stream": True}
        async with server.http.post(f"{server.url}/v1/completions", json=body) as answer:
            await answer.content.readline()
            assert (await server.metrics())["kv_cache_usage_perc"] > 0

        async def aborted():
            metrics = await server.metrics()
            return metrics["request_success_totalabort"] == 1 and metrics["kv_cache_usage_perc"] == 0

        await server.until(aborted)
