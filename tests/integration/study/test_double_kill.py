"""Optimizer and guard both killed by SIGKILL, with an engine that is deaf to SIGTERM: the next run starts clean."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.drill import RUN, History, assert_exact
from tests.driving import LIMIT_S

pytestmark = pytest.mark.timeout(200)

TRIALS = 2
RUN_BOTH = (*RUN, "--trials", str(TRIALS))
DEAF = {"AUTOTUNE_SIM_FAULTS": json.dumps([{"fault": "ignore_sigterm"}, {"fault": "escape_group"}])}


def test_the_next_run_ends_the_engine_that_outlived_optimizer_and_guard(driver, state_folder):
    run = driver.start(*RUN_BOTH, **DEAF)
    run.wait_for("trial #0: measuring")
    (guard,) = [one.pid for one in driver.left() if "guard.py" in one.command]
    os.kill(guard, signal.SIGSTOP)
    run.process.kill()
    run.finish()
    os.kill(guard, signal.SIGKILL)
    driver.wait_until(lambda: len(driver.left()) == len(driver.engines()), "the guard lives")
    engine = [one.pid for one in driver.engines()]
    assert len(engine) == 2, "else there is nothing to show"

    ended = driver.run(*RUN_BOTH, limit_s=LIMIT_S)
    assert ended.exit_code == 0, ended.said
    (told,) = [line for line in ended.err.splitlines() if "an earlier run" in line]
    assert f"(pid {run.process.pid}) was killed and left processes of trial drill/0/1 behind" in told
    assert all(f"{pid} (" in told for pid in engine)
    assert not driver.left()
    trials = History.of(driver.folder).trials()
    assert_exact(trials, TRIALS)
    assert trials[0].attempts == [1, 2]
    assert list((state_folder / "engines").glob("*.json")) == []
