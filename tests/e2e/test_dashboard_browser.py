"""The dashboard as a person sees it: a study on the simulated engine, in a real browser."""

from __future__ import annotations

import html
import json
import re
import signal
import subprocess

import pytest

from tests.drill import RUN, SPEED, STUDY, History, write_space
from tests.driving import Driver

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

FAULTS = json.dumps([{"fault": "kv_too_small", "when": {"block-size": 32}}])
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
    "--virtual-time-budget=15000",
)
TAGS = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL)


@pytest.fixture(scope="module")
def best(driver: Driver) -> int:
    """A study with trials of every kind; the number of its best feasible trial, which has not the best value."""
    write_space(driver.folder)
    ran = driver.start(*RUN, **SPEED, AUTOTUNE_SIM_FAULTS=FAULTS).finish()
    assert ran.exit_code == 0, ran.said
    fastest = driver.json("status", "--json")["studies"][0]["best"]
    # The fastest one is put beyond its limits: Optuna's own table goes on calling it the best.
    History.of(driver.folder).declare(fastest, "infeasible")
    second = driver.json("status", "--json")["studies"][0]["best"]
    assert second not in (fastest, None)
    return int(second)


@pytest.fixture(scope="module")
def dashboard(best, driver):
    """Where it is served."""
    server = driver.start("dashboard", "--port", "0")
    server.wait_for("(Ctrl-C ends it)")
    yield re.search(r"http://\S+", server.text)[0]
    server.send(signal.SIGINT)
    assert server.finish().exit_code == 0, "Ctrl-C is how a server is meant to end"


@pytest.fixture
def seen(dashboard, chromium, tmp_path):
    """The words of a page, and a picture of it."""

    def look(route: str) -> str:
        picture = tmp_path / "page.png"
        command = [chromium, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}", "--dump-dom"]
        dumped = subprocess.run(
            [*command, f"{dashboard}{route}"], check=True, capture_output=True, text=True, timeout=120
        )
        assert picture.stat().st_size > 20_000, "an empty page makes a small picture"
        return " ".join(html.unescape(TAGS.sub(" ", dumped.stdout)).split())

    return look


def failed_trial(driver: Driver) -> int:
    trials = driver.json("status", "--study", STUDY, "--json")["trials"]
    return int(next(trial["number"] for trial in trials if trial["state"] == "failed"))


def test_the_study_page_shows_the_feasible_best(seen, best):
    page = seen("/studies/1")
    assert f"{STUDY} (id=1)" in page
    assert "output_tokens_per_s" in page
    assert f"Best Trial (number={best})" in page


def test_the_study_s_note_names_best_and_failures(seen, best):
    page = seen("/studies/1/note")
    assert f"Best feasible trial: #{best} , output tok/s" in page
    assert "kv_cache_too_small" in page


def test_a_trial_s_note_tells_its_limits_flags_and_log(seen, driver, best):
    page = seen(f"/studies/1/trials?numbers={best}")
    for words in ("feasible", "P99 E2E", " % interval", "Attempt 1: launching", "trial-000", "engine.log"):
        assert words in page, words


def test_a_failed_trial_shows_its_evidence(seen, driver):
    page = seen(f"/studies/1/trials?numbers={failed_trial(driver)}")
    assert "Failed: kv cache too small while launching" in page
    assert "ValueError: To serve at least one request" in page
