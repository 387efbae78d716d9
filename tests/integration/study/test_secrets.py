"""Tokens, keys and passwords reach the engine, and nothing that is shown, written or exported."""

from __future__ import annotations

import importlib.util

import pytest

from tests.drill import RUN, STUDY, files_below
from tests.integration.study.side_by_side import run_at_once

pytestmark = pytest.mark.timeout(200)

ENVIRON = {"HF_TOKEN": "hf_planted-in-the-shell", "OPENAI_API_KEY": "sk-planted-in-the-shell"}
BASELINE = (
    "HF_TOKEN=hf_planted-before-the-command vllm serve tiny-kv --max-num-seqs 8"
    " --api-key sk-planted-in-the-command --hf-token=hf_planted-in-the-command"
)
PASSWORD = "planted-password"
PLANTED = (*ENVIRON.values(), "hf_planted-before", "sk-planted-in", "hf_planted-in", PASSWORD)


def assert_unsaid(text: str) -> None:
    assert not [secret for secret in PLANTED if secret in text], text


def no_secret_of_shell_or_baseline_is_kept_or_shown(planted):
    ran = planted.run(*RUN, "--trials", "2", "--baseline", BASELINE)
    assert ran.exit_code == 0, ran.said
    assert_unsaid(ran.said)
    assert "the baseline's api-key is left out" in ran.err, "what is left out is named"
    for done in run_at_once(
        planted,
        ("show", "0", "--json"),
        ("export", "--format", "command", "--trial", "0"),
        ("status", "--study", STUDY, "--json"),
    ):
        assert done.exit_code == 0, done.said
        assert_unsaid(done.said)
    kept = list(files_below(planted.folder))
    assert {"studies.db", "engine.log", "requests.csv.gz", "guard.log"} <= {path.name for path in kept}
    for path in kept:
        content = path.read_bytes()
        assert not [secret for secret in PLANTED if secret.encode() in content], path


def the_line_that_resumes_masks_what_was_typed(planted):
    run = planted.start(*RUN, "--baseline", BASELINE)
    run.wait_for("trial #0: launching")
    run.process.terminate()
    stopped = run.finish()
    assert stopped.exit_code == 130, stopped.said
    assert "go on with: " in stopped.err
    assert_unsaid(stopped.said)


def a_database_that_cannot_be_reached_is_named_without_its_password(planted):
    # Port 1 is reserved, and nothing listens there. Without the driver it does not come so far.
    expected = 4 if importlib.util.find_spec("psycopg") else 2
    url = f"postgresql://tuner:{PASSWORD}@127.0.0.1:1/history"
    for failed in run_at_once(planted, (*RUN, "--storage", url), ("status", "--storage", url)):
        assert failed.exit_code == expected, failed.said
        assert "127.0.0.1" in failed.err
        assert failed.err.count("error: ") == 1
        assert "Traceback" not in failed.err
        assert_unsaid(failed.said)


DRILLS = (
    no_secret_of_shell_or_baseline_is_kept_or_shown,
    the_line_that_resumes_masks_what_was_typed,
    a_database_that_cannot_be_reached_is_named_without_its_password,
)


@pytest.mark.parametrize("drill", DRILLS)
def test_nothing_planted_is_found(begun, drill):
    begun[drill].result()
