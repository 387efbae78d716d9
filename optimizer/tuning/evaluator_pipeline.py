"""One attempt at one trial by an external evaluator: it gets the setting on stdin and prints what it measured."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from optimizer.core.errors import HostError
from optimizer.core.failure import Failure
from optimizer.core.reported import ReportedMetrics
from optimizer.core.trial import Stage
from optimizer.engine.vllm.argv import flag_words
from optimizer.host.processes import TRIAL_VARIABLE
from optimizer.host.supervisor import LaunchSpec, StopReport, SupervisedProcess, Supervisor
from optimizer.host.tasks import to_its_end
from optimizer.load import Workload
from optimizer.load.progress import LoadProgress
from optimizer.tuning.evaluator_output import (
    REQUEST,
    STDERR,
    STDOUT,
    STREAMS,
    cut,
    died,
    evidence,
    hangs,
    last_line,
    made_no_sense,
    printed_too_much,
    size_bytes,
    write_file,
)
from optimizer.tuning.evaluator_protocol import EvaluatorRequest, Nonsense, read_answer
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.trial_pipeline import AttemptOutcome, TrialJob, survivors

OUTPUT_LIMIT_BYTES = 64 * 2**20
"""Of stdout and of stderr each; an evaluator that prints more is ended, and the beginning of it kept."""
_LOOK_EVERY_S = 0.25
_STOP_GRACE_S = 5.0


class EvaluatorPipeline:
    """Runs attempts, one at a time.

    Args:
        supervisor: Starts the evaluator, and ends it with all that it started.
        words: Program and arguments.
        timeout_s: One that has not ended by then hangs.
        workload: The study's traffic, which it is told of.
        wanted: Metrics that the study needs.
        output_limit_bytes: Most that it may print on either stream.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        words: Sequence[str],
        *,
        timeout_s: float,
        workload: Workload,
        wanted: Sequence[str],
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> None:
        self._supervisor = supervisor
        self._words = tuple(words)
        self._timeout_s = timeout_s
        self._workload = workload
        self._wanted = tuple(wanted)
        self._output_limit_bytes = output_limit_bytes

    async def run(
        self,
        job: TrialJob,
        clock: StageClock,
        *,
        on_launch: Callable[[tuple[str, ...]], None],
        on_progress: Callable[[LoadProgress], None],
    ) -> AttemptOutcome:
        """Make the attempt. The evaluator and all that it started are gone when this returns or raises.

        Args:
            job: What to measure.
            clock: Told of every stage.
            on_launch: Not called: how the evaluator starts the engine, if it does, is its own business.
            on_progress: Not called: nobody tells how far it is.

        Raises:
            HostError: It cannot be started, or its files cannot be written.
            asyncio.CancelledError: The study was interrupted.
        """
        clock.enter(Stage.MEASURING)
        process, cancelled = await to_its_end(self._launch(job))
        failure: Failure | None = None
        try:
            if cancelled is not None:
                raise cancelled
            failure = await self._until_it_ends(process, job.folder)
        finally:
            stop = await _stop(process, clock)
            for name in STREAMS.values():
                cut(job.folder / name, self._output_limit_bytes)
        if stop.left:
            return AttemptOutcome(failure=survivors(stop), stop=stop)
        if failure is not None:
            return AttemptOutcome(failure=failure, stop=stop)
        result = self._result(job.folder, process.exited.result())
        if isinstance(result, Failure):
            return AttemptOutcome(failure=result, stop=stop)
        return AttemptOutcome(reported=result, stop=stop)

    async def _launch(self, job: TrialJob) -> SupervisedProcess:
        request = job.folder / REQUEST
        write_file(request, self._request(job).model_dump_json() + "\n")
        spec = LaunchSpec(
            argv=self._words,
            env={**os.environ, TRIAL_VARIABLE: job.marker},
            log=job.folder / STDOUT,
            stdin=request,
            stderr=job.folder / STDERR,
        )
        try:
            return await self._supervisor.launch(spec)
        except HostError as error:
            raise HostError(
                f"the evaluator {self._words[0]!r} cannot be started: {error.message}",
                hint="a script needs a #! line and chmod +x; then run the same command: the study goes on",
            ) from error

    def _request(self, job: TrialJob) -> EvaluatorRequest:
        flags = dict(job.config.flags)
        study = job.marker.rsplit("/", 2)[0]
        return EvaluatorRequest(
            trial=job.number,
            params=dict(job.params),
            flags=flags,
            workload=self._workload.model_dump(mode="json"),
            seed=job.study_seed,
            content_seed=job.content_seed,
            study=study,
            attempt=job.attempt,
            role=job.role.value,
            model=job.config.model,
            env=dict(job.config.env),
            argv=flag_words(flags),
            wanted=list(self._wanted),
        )

    async def _until_it_ends(self, process: SupervisedProcess, folder: Path) -> Failure | None:
        """Wait for its end; a failure when it takes too long or prints too much."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        while True:
            left_s = deadline_s - loop.time()
            await asyncio.wait({process.exited}, timeout=max(0.0, min(left_s, _LOOK_EVERY_S)))
            for stream, name in STREAMS.items():
                if size_bytes(folder / name) > self._output_limit_bytes:
                    return printed_too_much(folder, stream, self._output_limit_bytes)
            if process.exited.done():
                return None
            if left_s <= 0.0:
                return hangs(folder, self._timeout_s)

    def _result(self, folder: Path, exit_code: int) -> ReportedMetrics | Failure:
        """What an evaluator that has ended came to.

        A `failed` counts whatever the exit status is, for that is how many programs end when something failed; an `ok`
        of one that then died does not.
        """
        line = last_line(folder / STDOUT)
        answer: ReportedMetrics | Failure | None = None
        nonsense = "it printed nothing on stdout"
        if line is not None:
            try:
                answer = read_answer(line, self._wanted)
            except Nonsense as error:
                nonsense = f"the last line on stdout: {error}"
        if isinstance(answer, Failure):
            return replace(answer, evidence=evidence(folder), exit_code=exit_code)
        if exit_code != 0:
            return died(folder, exit_code)
        return made_no_sense(folder, nonsense) if answer is None else answer


async def _stop(process: SupervisedProcess, clock: StageClock) -> StopReport:
    """End it with all that it started, even while this task is being cancelled, or when no stage can be recorded."""
    try:
        clock.enter(Stage.STOPPING)
    finally:
        report, cancelled = await to_its_end(process.stop(grace_s=_STOP_GRACE_S))
    clock.end()
    if cancelled is not None:
        raise cancelled
    return report
