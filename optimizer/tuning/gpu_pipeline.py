"""An attempt on leased cards: clean before the launch, watched meanwhile, clean after the stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from optimizer.core.engine_config import JsonValue
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine.vllm.violations import memory_shortage
from optimizer.host.files import keep_file, write_json
from optimizer.host.gpus import Gpu
from optimizer.host.processes import tell_survivors
from optimizer.load.progress import LoadProgress
from optimizer.metrics import GpuGauges
from optimizer.tuning.gpu_account import CardAccount
from optimizer.tuning.gpu_count import gpus_of
from optimizer.tuning.gpu_hold import GpuHold, gpu_busy, visible
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.trial_pipeline import AttemptOutcome, TrialJob

GPU_MEMORY = "gpu_memory.json"
"""In the attempt's folder: bytes in use of each card before the launch, before the stop and after it."""
_WATCH_EVERY_S = 1.0
_OF_NO_CARD = frozenset({FailureKind.REJECTED_FLAG, FailureKind.INVALID_COMBINATION, FailureKind.PORT_TAKEN})
"""What neither a co-tenant of the card nor a process left on it can have caused."""


class AttemptRunner(Protocol):
    """Makes one attempt; `TrialPipeline` does, and `GpuPipeline` around it."""

    async def run(
        self,
        job: TrialJob,
        clock: StageClock,
        *,
        on_launch: Callable[[tuple[str, ...]], None],
        on_progress: Callable[[LoadProgress], None],
    ) -> AttemptOutcome:
        """Make the attempt; no engine is left when it returns or raises."""


class GpuPipeline:
    """Runs attempts on the cards of a study.

    Args:
        inner: Makes the attempt itself.
        hold: The study's cards.
        gauges: Tells what the cards do while load runs; None leaves that out.
        watch_every_s: How often the cards' memory is looked at while an engine is up.
    """

    def __init__(
        self,
        inner: AttemptRunner,
        hold: GpuHold,
        *,
        gauges: GpuGauges | None = None,
        watch_every_s: float = _WATCH_EVERY_S,
    ) -> None:
        self._inner = inner
        self._hold = hold
        self._gauges = gauges
        self._watch_every_s = watch_every_s

    async def run(
        self,
        job: TrialJob,
        clock: StageClock,
        *,
        on_launch: Callable[[tuple[str, ...]], None],
        on_progress: Callable[[LoadProgress], None],
    ) -> AttemptOutcome:
        """Make the attempt, on clean cards or not at all.

        Raises:
            HostError: No card is left for this study, the driver does not answer, or what the inner one raises.
            asyncio.CancelledError: The study was interrupted.
        """
        clock.enter(Stage.LAUNCHING)
        gpus = self._hold.cards_for(gpus_of(job.config))
        looks, failure = await self._hold.clean_before_launch(gpus)
        if failure is not None:
            clock.end()
            return AttemptOutcome(failure=failure)
        accounts = {look.gpu.uuid: CardAccount.of(look) for look in looks}
        config = replace(job.config, env={**job.config.env, **visible(gpus)})
        async with self._watching(gpus, accounts, clock):
            on_cards = replace(job, config=config, gpus=tuple(gpus), gauges=self._gauges)
            outcome = await self._inner.run(on_cards, clock, on_launch=on_launch, on_progress=on_progress)
        return await self._settle(outcome, gpus, accounts, job.folder)

    async def _settle(
        self, outcome: AttemptOutcome, gpus: Sequence[Gpu], accounts: Mapping[str, CardAccount], folder: Path
    ) -> AttemptOutcome:
        looks, took_s, failure = await self._hold.clean_after_stop(gpus)
        for look in looks:
            accounts[look.gpu.uuid].after_stop_bytes = look.used_bytes
        _keep(folder / GPU_MEMORY, accounts, took_s)
        strangers = _strangers(accounts)
        if failure is None and strangers is None:
            outcome = _with_own_shortage(outcome)
        outcome = replace(outcome, notes=(*outcome.notes, *(account.note(took_s) for account in accounts.values())))
        left = () if outcome.stop is None else outcome.stop.left
        if left and failure is None:
            self._give_up(gpus, left)
            return outcome
        return _with_gpu_failure(outcome, failure or strangers)

    def _give_up(self, gpus: Sequence[Gpu], pids: Sequence[int]) -> None:
        """NVML does not tell on which card processes that could not be ended are: it may be any of this attempt's."""
        cards = " and ".join(gpu.label for gpu in gpus)
        listed = ", ".join(map(str, pids))
        self._hold.set_aside(gpus, f"{cards}: set aside, since {tell_survivors(f'processes {listed} of an engine')}")

    @contextlib.asynccontextmanager
    async def _watching(
        self, gpus: Sequence[Gpu], accounts: Mapping[str, CardAccount], clock: StageClock
    ) -> AsyncIterator[None]:
        """Keep the accounts while the block runs. A driver that fails meanwhile is told after the block."""
        done = asyncio.Event()
        watch = asyncio.create_task(self._watch(gpus, accounts, clock, done), name="gpu-watch")
        try:
            yield
        finally:
            done.set()
            (trouble,) = await asyncio.gather(watch, return_exceptions=True)
        if trouble is not None:
            raise trouble

    async def _watch(
        self, gpus: Sequence[Gpu], accounts: Mapping[str, CardAccount], clock: StageClock, done: asyncio.Event
    ) -> None:
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), self._watch_every_s)
                return
            for gpu in gpus:
                # In a thread: the load client on this loop is measuring, and a look takes milliseconds.
                look = await asyncio.to_thread(self._hold.look, gpu)
                accounts[gpu.uuid].add(look, stopping=clock.stage is Stage.STOPPING)


def _strangers(accounts: Mapping[str, CardAccount]) -> Failure | None:
    """Others that took memory of the cards while the engine was up, though they be gone by now."""
    risen = {
        account.gpu.uuid: account.risen_bytes(account.strangers) for account in accounts.values() if account.strangers
    }
    looks = [account.strangers for account in accounts.values() if account.strangers is not None]
    return gpu_busy(looks, risen, Stage.MEASURING) if looks else None


def _with_own_shortage(outcome: AttemptOutcome) -> AttemptOutcome:
    """What the engine took for a busy card, where nobody took more of the card than before the study.

    A tenant from before stays, so the setting asks for more than this study's card gives. A second attempt makes sure:
    somebody may have come and gone between two looks.
    """
    failure = outcome.failure
    if failure is None or failure.kind is not FailureKind.GPU_BUSY or "needed_gib" not in failure.facts:
        return outcome
    needed_gib, free_gib = failure.facts["needed_gib"], failure.facts["available_gib"]
    shortage = replace(
        failure,
        kind=FailureKind.OUT_OF_MEMORY,
        blame=Blame.CONFIG,
        detail=f"{needed_gib:g} GiB of GPU memory are asked for, {free_gib:g} GiB are free beside what others held "
        "before the study",
        violation=memory_shortage(failure.facts),
        retryable=True,
    )
    return replace(outcome, failure=shortage)


def _with_gpu_failure(outcome: AttemptOutcome, failure: Failure | None) -> AttemptOutcome:
    """What the cards tell outweighs what the engine came to: a co-tenant spoils measurements and causes crashes."""
    own = outcome.failure
    if failure is None or (own is not None and own.kind in _OF_NO_CARD):
        return outcome
    if own is not None:
        came_to = f"the attempt itself ended in {own.kind}: {own.detail}"
        failure = replace(failure, evidence=(*failure.evidence, came_to), exit_code=own.exit_code)
    return replace(outcome, measurement=None, failure=failure)


def _keep(path: Path, accounts: Mapping[str, CardAccount], took_s: float) -> None:
    told: JsonValue = {"clean_after_s": took_s, "gpus": [account.as_dict() for account in accounts.values()]}
    keep_file(path, lambda to: write_json(to, told))
