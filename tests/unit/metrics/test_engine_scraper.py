"""The scraper against a real server, and the reduction of readings to a window."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from optimizer.core.endpoint import EngineEndpoint
from optimizer.metrics import EngineScraper
from optimizer.metrics.engine_scraper import reduce_readings
from optimizer.metrics.exposition import Reading, parse_exposition

MakePage = Callable[..., str]
ALL = (float("-inf"), float("inf"))


class MetricsPage:
    """A page that a test may change while it is served."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.status = 200
        self.reads = 0
        self.read = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.Response:
        async with self.read:
            self.reads += 1
            self.read.notify_all()
        return web.Response(text=self.text, status=self.status)

    async def until_read(self, more: int = 1) -> None:
        target = self.reads + more
        async with asyncio.timeout(10), self.read:
            await self.read.wait_for(lambda: self.reads >= target)


@asynccontextmanager
async def scraping(page: MetricsPage, *, interval_s: float = 60.0) -> AsyncIterator[EngineScraper]:
    app = web.Application()
    app.router.add_get("/metrics", page.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        async with aiohttp.ClientSession() as session:
            yield EngineScraper(EngineEndpoint(f"http://{host}:{port}", "nonce"), session, interval_s=interval_s)
    finally:
        await runner.cleanup()


async def test_marks_are_read_at_once_and_bound_the_counters(make_page: MakePage) -> None:
    page = MetricsPage(make_page(preemptions=5.0))
    async with scraping(page) as scraper:
        async with scraper:
            await page.until_read()
            page.text = make_page(preemptions=7.0, queries=200.0, hits=100.0)
            scraper.mark_start()
            await page.until_read()
            page.text = make_page(preemptions=10.0, queries=300.0, hits=175.0, running=9.0, usage=0.5)
            scraper.mark_end()
            await page.until_read()
        metrics = scraper.result()
    assert page.reads == 3
    assert metrics.preemptions == 3.0
    assert metrics.prefix_cache_hit_rate == 0.75
    assert (metrics.running_mean, metrics.running_max) == (6.0, 9.0)
    assert (metrics.kv_cache_usage_mean, metrics.kv_cache_usage_max) == (0.375, 0.5)
    assert metrics.kv_cache_tokens == 2048.0
    assert metrics.spec_acceptance_rate is None
    assert metrics.notes == ()


async def test_leaving_reads_the_end_if_nobody_has_yet(make_page: MakePage) -> None:
    page = MetricsPage(make_page(preemptions=5.0))
    async with scraping(page) as scraper:
        async with scraper:
            scraper.mark_start()
            await page.until_read()
            page.text = make_page(preemptions=6.0)
            scraper.mark_end()
        assert scraper.result().preemptions == 1.0


async def test_it_reads_at_its_interval(make_page: MakePage) -> None:
    page = MetricsPage(make_page())
    async with scraping(page, interval_s=0.01) as scraper, scraper:
        await page.until_read(5)


@pytest.mark.parametrize(("text", "status"), [("<html>", 200), ("", 503), ("\x00\xff", 200)])
async def test_a_page_that_cannot_be_read_is_a_note(text: str, status: int) -> None:
    page = MetricsPage(text)
    page.status = status
    async with scraping(page) as scraper:
        async with scraper:
            scraper.mark_start()
            await page.until_read()
            scraper.mark_end()
        metrics = scraper.result()
    assert metrics.preemptions is None
    assert "readings of /metrics failed" in metrics.notes[0]
    assert "2 are needed" in metrics.notes[1]


async def test_a_server_that_is_gone_is_a_note() -> None:
    async with aiohttp.ClientSession() as session:
        # Port 9 (discard) is not served; nothing listens there.
        scraper = EngineScraper(EngineEndpoint("http://127.0.0.1:9", "nonce"), session)
        async with scraper:
            scraper.mark_start()
            scraper.mark_end()
        assert "ClientConnectorError" in scraper.result().notes[0]


async def test_cancelling_it_is_quick(make_page: MakePage) -> None:
    page = MetricsPage(make_page())
    async with scraping(page) as scraper:
        started = time.monotonic()
        with pytest.raises(RuntimeError, match="load broke"):
            async with scraper:
                await page.until_read()
                raise RuntimeError("load broke")
        assert time.monotonic() - started < 30
    assert page.reads == 1


def readings(*pages: str) -> list[tuple[float, Reading]]:
    return [(float(at), parse_exposition(page)) for at, page in enumerate(pages)]


def test_only_readings_of_the_window_count(make_page: MakePage) -> None:
    series = readings(*(make_page(preemptions=float(n * n), running=float(n)) for n in range(8)))
    metrics = reduce_readings(series, 2.0, 4.5, [])
    assert metrics.preemptions == 25.0 - 4.0
    assert (metrics.running_mean, metrics.running_max) == (3.5, 5.0)


def test_a_reset_counter_starts_again_from_zero(make_page: MakePage) -> None:
    series = readings(*(make_page(preemptions=n) for n in (10.0, 14.0, 3.0, 4.0)))
    metrics = reduce_readings(series, *ALL, [])
    assert metrics.preemptions == 4.0 + 3.0 + 1.0
    assert any("preemptions: the engine's counter was reset" in note for note in metrics.notes)


def test_what_the_engine_does_not_report_is_none_with_a_note(make_page: MakePage) -> None:
    page = make_page().replace("vllm:num_preemptions_total", "vllm:other").replace("vllm:kv_cache_usage_perc", "vllm:x")
    metrics = reduce_readings(readings(page, page), *ALL, [])
    assert (metrics.preemptions, metrics.kv_cache_usage_mean) == (None, None)
    assert metrics.notes == ("preemptions: not reported by the engine", "kv_cache_usage: not reported by the engine")


def test_a_value_that_is_no_number_is_none_with_a_note(make_page: MakePage) -> None:
    series = readings(make_page(preemptions="NaN", usage="NaN"), make_page(usage=0.5))
    metrics = reduce_readings(series, *ALL, [])
    assert metrics.preemptions is None
    assert metrics.kv_cache_usage_mean == 0.5
    assert metrics.notes == ("preemptions: the engine reports a value that is no number",)


def test_acceptance_of_speculation_and_no_rate_without_a_look_up(make_page: MakePage) -> None:
    drafts = "vllm:spec_decode_num_draft_tokens_total{{}} {}\nvllm:spec_decode_num_accepted_tokens_total{{}} {}\n"
    series = readings(make_page() + drafts.format(10, 8), make_page() + drafts.format(30, 13))
    metrics = reduce_readings(series, *ALL, [])
    assert metrics.spec_acceptance_rate == 0.25
    assert metrics.prefix_cache_hit_rate is None


def test_latencies_in_the_engine_are_those_of_the_window(make_page: MakePage) -> None:
    def page(seconds: float, count: float) -> str:
        names = ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_queue_time_seconds")
        return make_page() + "".join(f"vllm:{name}_sum {seconds}\nvllm:{name}_count {count}\n" for name in names)

    metrics = reduce_readings(readings(page(10.0, 5.0), page(11.0, 9.0)), *ALL, [])
    assert (metrics.engine_ttft_mean_ms, metrics.engine_itl_mean_ms, metrics.engine_queue_mean_ms) == (250.0,) * 3
    assert reduce_readings(readings(page(1.0, 5.0), page(1.0, 5.0)), *ALL, []).engine_ttft_mean_ms is None


def test_older_engines_without_reasons_or_histograms_are_no_note(make_page: MakePage) -> None:
    metrics = reduce_readings(readings(make_page(), make_page()), *ALL, [])
    assert (metrics.waiting_capacity_mean, metrics.engine_itl_mean_ms, metrics.notes) == (None, None, ())
    assert metrics.kv_block_tokens == 128.0
