"""An external evaluator under a guard, for as long as a study runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from optimizer.app.session import HostState
from optimizer.config import StudyConfig
from optimizer.config.evaluator import Evaluator
from optimizer.host.supervisor import Supervisor
from optimizer.tuning.evaluator_pipeline import EvaluatorPipeline


@contextlib.asynccontextmanager
async def evaluator_runner(
    evaluator: Evaluator,
    config: StudyConfig,
    host: HostState,
    *,
    guard_log: Path,
    notice: Callable[[str], None],
) -> AsyncIterator[EvaluatorPipeline]:
    """What makes attempts by the evaluator; nothing that it started is left afterwards, or it is told what.

    Args:
        evaluator: The command.
        config: The study.
        host: Keeps what a later run needs to find the evaluator, should this one be killed.
        guard_log: Where the guard's own stderr goes.
        notice: Is told what is left.

    Raises:
        HostError: The guard does not come up.
    """
    supervisor = await Supervisor.start(log=guard_log, ledger=host.ledger)
    try:
        yield EvaluatorPipeline(
            supervisor,
            evaluator.words,
            timeout_s=evaluator.timeout_s,
            workload=config.workload,
            wanted=wanted_metrics(config),
        )
    finally:
        host.keep_survivors(await supervisor.close(), "evaluator", notice)


def wanted_metrics(config: StudyConfig) -> tuple[str, ...]:
    """The metrics without which a trial cannot be judged: the objective's, and that of each limit."""
    return tuple(dict.fromkeys((config.objective.metric, *(slo.name for slo in config.slos))))
