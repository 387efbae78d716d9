"""Launch after launch of the simulated engine through the real pipeline, and a look at what each left behind."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

from optimizer.app.engine_choice import choose_engine
from optimizer.core.engine_config import EngineConfig
from optimizer.core.errors import HostError
from optimizer.engine.launch import EngineLauncher, EngineProgram
from optimizer.host.gpus import Gpu
from optimizer.host.leases import lease_gpus
from optimizer.host.ledger import EngineLedger, LedgerEntry
from optimizer.host.supervisor import Supervisor
from optimizer.load import Workload
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.trial_pipeline import AttemptOutcome, TrialJob, TrialPipeline
from tests.soak.journal import Journal
from tests.soak.leftovers import open_fds, port_left, processes_left
from tests.soak.plan import KILL_GUARD, MEASURED, Cycle

_POLL_S = 0.02
HANG_S = 2.0
"""Shorter than in earnest: what is soaked here is the way out, not the patience before it."""
CARD = Gpu("GPU-of-the-soak", 0, "none", 0)
WORKLOAD = Workload.model_validate(
    {
        "name": "soak",
        "arrivals": {"kind": "closed_loop", "in_flight": 8},
        "prompt_tokens": {"kind": "uniform", "low": 16, "high": 32},
        "output_tokens": {"kind": "uniform", "low": 4, "high": 8},
        "warmup": {"requests": 4, "max_s": 2},
        "window": {"min_s": 0.3, "max_s": 3, "min_requests": 100},
    }
)

PATIENT_WORKLOAD = WORKLOAD.model_copy(
    update={
        "warmup": WORKLOAD.warmup.model_copy(update={"max_s": 5.0}),
        "window": WORKLOAD.window.model_copy(update={"max_s": 20.0}),
    }
)
"""For a run that must not be misjudged on a machine that stands still for seconds."""


class Attempt:
    """What is known of the cycle under way."""

    def __init__(self, marker: str) -> None:
        self.marker = marker
        self.argv: tuple[str, ...] = ()
        self.launched = asyncio.Event()
        self.was_hit = False

    def note_launch(self, argv: tuple[str, ...]) -> None:
        self.argv = argv
        self.launched.set()

    @property
    def port(self) -> int | None:
        return int(self.argv[self.argv.index("--port") + 1]) if "--port" in self.argv else None


class SimulatedSoak:
    """Runs cycles and collects what was left behind.

    Args:
        folder: Logs, ledger and leases go into it.
        journal: Is told each cycle.
        workload: What every engine is loaded with.
        hang_s: How long one may stand still.
    """

    def __init__(
        self, folder: Path, journal: Journal, *, workload: Workload = WORKLOAD, hang_s: float = HANG_S
    ) -> None:
        self._folder = folder
        self._journal = journal
        self._workload = workload
        self._hang_s = hang_s
        self._ledger = EngineLedger(folder / "ledger")
        self._ledger.folder.mkdir()
        self._token = secrets.token_hex(4)
        self._own_fds: int | None = None
        self._guard_fds: int | None = None
        self.outcomes: Counter[str] = Counter()
        self.left: list[str] = []
        self.misjudged: list[str] = []

    async def run(self, cycles: list[Cycle]) -> None:
        """All cycles, under a guard that is replaced when it was killed."""
        supervisor = await self._start_guard()
        for number, cycle in enumerate(cycles, start=1):
            await self._run_one(number, cycle, supervisor)
            if cycle.assault == KILL_GUARD:
                supervisor = await self._start_guard()
        await supervisor.close()
        self.left += [f"at the end: {path} in the ledger" for path in self._ledger.folder.iterdir()]

    async def _start_guard(self) -> Supervisor:
        self._guard_fds = None
        return await Supervisor.start(log=self._folder / "guard.log", ledger=self._ledger)

    async def _run_one(self, number: int, cycle: Cycle, supervisor: Supervisor) -> None:
        begun_s = time.monotonic()
        attempt = Attempt(f"soak-{self._token}/{number}/1")
        (lease,) = lease_gpus([CARD], 1, study="soak", folder=self._folder / "leases")
        attacking = asyncio.create_task(self._attack(cycle, attempt))
        running = asyncio.create_task(self._attempt(number, cycle, attempt, supervisor))
        attacking.add_done_callback(lambda done: running.cancel() if not done.cancelled() and done.result() else None)
        (entry,) = self._ledger.view().entries
        ended, killed = await _ending(running)
        attacking.cancel()
        await asyncio.gather(attacking, return_exceptions=True)
        lease.release()
        if cycle.assault == KILL_GUARD:
            # Whoever lost his guard closes it, and only then may he launch again.
            await supervisor.close()
        left = await self._look(attempt, entry, guard_killed=cycle.assault == KILL_GUARD)
        if cycle.assault is not None and not attempt.was_hit:
            ended += " (the blow came too early or too late)"
        self.outcomes[ended] += 1
        self.left += [f"cycle {number}: {what}" for what in left]
        if cycle.outcomes is not None and ended.partition(" ")[0] not in cycle.outcomes:
            self.misjudged.append(f"cycle {number} ({cycle.words}): {ended}, not {sorted(cycle.outcomes)}")
        rss_mib = psutil.Process().memory_info().rss / 2**20
        self._journal.say(
            f"{number:>3}  {time.monotonic() - begun_s:5.2f} s  {cycle.words}: {ended}; killed {killed}; "
            f"left {'; '.join(left) or 'nothing'}; fds {open_fds()}, {rss_mib:.0f} MiB"
        )

    async def _attempt(self, number: int, cycle: Cycle, attempt: Attempt, supervisor: Supervisor) -> AttemptOutcome:
        choice = choose_engine("simulated", None)
        program = EngineProgram(head=choice.display_head, display_head=choice.display_head)
        pipeline = TrialPipeline(EngineLauncher(supervisor, program), self._workload, hang_s=self._hang_s)
        env = {"AUTOTUNE_SIM_FAULTS": cycle.script, "AUTOTUNE_SIM_SPEED": "100"}
        folder = self._folder / f"cycle-{number:03}"
        folder.mkdir()
        job = TrialJob(
            marker=attempt.marker,
            config=EngineConfig("simulated", "simulated", {}, env),
            expected_memory_gib=None,
            folder=folder,
            study_seed=0,
            content_seed=number,
            start_limit_s=60.0,
        )
        clock = StageClock(lambda _stages: None)
        return await pipeline.run(job, clock, on_launch=attempt.note_launch, on_progress=lambda _progress: None)

    async def _attack(self, cycle: Cycle, attempt: Attempt) -> bool:
        """Strikes when its time has come; True when the attempt is to be cancelled."""
        if cycle.assault is None:
            return False
        await attempt.launched.wait()
        await asyncio.sleep(cycle.assault_after_s)
        (entry,) = self._ledger.view().entries
        if cycle.assault == "cancel the attempt":
            attempt.was_hit = True
            return True
        # Nothing tells of the birth of another's child.
        while not (victims := _victims(cycle.assault, entry)):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        for process in victims:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP if cycle.assault.startswith("stop") else signal.SIGKILL)
                attempt.was_hit = True
        return False

    async def _look(self, attempt: Attempt, entry: LedgerEntry, *, guard_killed: bool) -> list[str]:
        """What the cycle left, at once and without patience."""
        leader = _leader_of(attempt, self._folder)
        left = processes_left(attempt.marker, leader=leader, guard=entry.guard.pid)
        if attempt.port is not None:
            left += port_left(attempt.port)
        (again,) = lease_gpus([CARD], 1, study="soak", folder=self._folder / "leases")
        again.release()
        own_fds = open_fds()
        self._own_fds = self._own_fds or own_fds
        if own_fds > self._own_fds:
            left.append(f"{own_fds - self._own_fds} descriptors of the optimizer")
        if not guard_killed:
            guard_fds = open_fds(entry.guard.pid)
            self._guard_fds = self._guard_fds or guard_fds
            if guard_fds > self._guard_fds:
                left.append(f"{guard_fds - self._guard_fds} descriptors of the guard")
            left += [f"{e.leader} in the ledger" for e in self._ledger.view().entries if e.leader is not None]
            if entry.scratch is not None:
                left += [f"temporary file {name}" for name in os.listdir(entry.scratch)]  # noqa: PTH208 (as for descriptors)
        return left


async def _ending(running: asyncio.Task[AttemptOutcome]) -> tuple[str, int]:
    """What an attempt came to, and how many processes had to be killed."""
    try:
        outcome = await running
    except asyncio.CancelledError:
        return "cancelled", 0
    except HostError as error:
        return f"host error ({error.message})", 0
    killed = 0 if outcome.stop is None else len(outcome.stop.killed)
    if outcome.failure is None:
        return MEASURED, killed
    return f"{outcome.failure.kind.value} while {outcome.failure.stage.value}", killed


def _victims(assault: str, entry: LedgerEntry) -> list[psutil.Process]:
    """Whom an assault is meant for, as far as they are there already."""
    if assault == KILL_GUARD:
        return [psutil.Process(entry.guard.pid)]
    try:
        leader = psutil.Process(entry.leader.pid) if entry.leader is not None else None
        if leader is None or assault == "kill the API server":
            return [] if leader is None else [leader]
        return [child for child in leader.children() if child.name().startswith("VLLM::Engine")]
    except psutil.NoSuchProcess:
        return []


def _leader_of(attempt: Attempt, folder: Path) -> int | None:
    """The engine's first process: its log tells the pid with every line."""
    number = attempt.marker.split("/")[1]
    log = folder / f"cycle-{int(number):03}" / "engine.log"
    head = log.read_bytes()[:200] if log.exists() else b""
    words = head.partition(b"pid=")[2].partition(b")")[0]
    return int(words) if words.isdigit() else None


def fresh_seed() -> int:
    """The seed of the environment, or a new one."""
    return int(os.environ.get("SOAK_SEED") or secrets.randbelow(10**6))
