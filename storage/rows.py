"""Records as table rows and back, without loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import RowMapping

from optimizer.core.engine_config import EngineConfig
from optimizer.core.errors import AutotuneError, HostError
from optimizer.core.failure import Blame, Failure, FailureKind, MemoryPhase
from optimizer.core.recommendation import Recommendation
from optimizer.core.record import AttemptRecord, ProcessIdentity, StageTiming, StudyRecord, TrialRecord
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.trial import Stage, TrialRole, TrialState
from optimizer.storage.json_text import from_text, to_text

Row: TypeAlias = RowMapping
"""Column name to value."""

_T = TypeVar("_T")


def study_row(study: StudyRecord) -> dict[str, Any]:
    """The columns of `autotune_studies` but for the id."""
    return {
        "name": study.name,
        "created_at": _time_text(study.created_at),
        "objective": study.objective,
        "maximise": study.maximise,
        "identity": to_text(study.identity),
        "config": to_text(study.config),
        "versions": to_text(study.versions),
        "host": to_text(study.host),
    }


def study_record(row: Row) -> StudyRecord:
    """The study of a row.

    Raises:
        HostError: The row was not written by this program.
    """
    return _read(f"study {row['name']}", _study, row)


def _study(row: Row) -> StudyRecord:
    return StudyRecord(
        name=row["name"],
        created_at=datetime.fromisoformat(row["created_at"]),
        objective=row["objective"],
        maximise=row["maximise"],
        **{name: _mapping(row[name]) for name in ("identity", "config", "versions", "host")},
    )


def trial_row(trial: TrialRecord) -> dict[str, Any]:
    """The trial's own columns of `autotune_trials`."""
    finite = trial.value is not None and math.isfinite(trial.value)
    return {
        "number": trial.number,
        "role": trial.role.value,
        "state": trial.state.value,
        "value": trial.value if finite else None,
        "params": to_text(trial.params),
        "config": to_text(None if trial.config is None else trial.config.as_dict()),
        "metrics": to_text(trial.metrics),
        "score": to_text(None if trial.score is None else _score_data(trial.score)),
        "failure": to_text(_failure_data(trial.failure)),
        "notes": to_text(trial.notes),
    }


def trial_record(study: str, row: Row, attempts: tuple[AttemptRecord, ...]) -> TrialRecord:
    """The trial of a row and its attempts.

    Raises:
        HostError: The row was not written by this program.
    """
    return _read(f"trial {row['number']} of study {study}", lambda data: _trial(study, data, attempts), row)


def _trial(study: str, row: Row, attempts: tuple[AttemptRecord, ...]) -> TrialRecord:
    config, score = _data(row["config"]), _data(row["score"])
    return TrialRecord(
        study=study,
        number=row["number"],
        role=TrialRole(row["role"]),
        state=TrialState(row["state"]),
        params=_mapping(row["params"]),
        config=None if config is None else EngineConfig(**config),
        metrics=_mapping(row["metrics"]),
        score=None if score is None else _score(score),
        failure=_failure(_data(row["failure"])),
        attempts=attempts,
        notes=tuple(_data(row["notes"])),
    )


def attempt_row(attempt: AttemptRecord) -> dict[str, Any]:
    """The columns of `autotune_attempts` but for the ids."""
    owner = attempt.owner
    stages = [(timing.stage.value, _time_text(timing.started_at), timing.duration_s) for timing in attempt.stages]
    return {
        "number": attempt.number,
        "owner": to_text(
            {"host": owner.host, "boot_id": owner.boot_id, "pid": owner.pid, "start_ticks": owner.start_ticks}
        ),
        "started_at": _time_text(attempt.started_at),
        "ended_at": None if attempt.ended_at is None else _time_text(attempt.ended_at),
        "folder": attempt.folder,
        "argv": to_text(attempt.argv),
        "stages": to_text(stages),
        "failure": to_text(_failure_data(attempt.failure)),
    }


def attempt_record(row: Row) -> AttemptRecord:
    """The attempt of a row.

    Raises:
        HostError: The row was not written by this program.
    """
    return _read(f"attempt {row['number']} in {row['folder']}", _attempt, row)


def _attempt(row: Row) -> AttemptRecord:
    ended_at = row["ended_at"]
    return AttemptRecord(
        number=row["number"],
        owner=ProcessIdentity(**_mapping(row["owner"])),
        started_at=datetime.fromisoformat(row["started_at"]),
        ended_at=None if ended_at is None else datetime.fromisoformat(ended_at),
        folder=row["folder"],
        argv=tuple(_data(row["argv"])),
        stages=tuple(
            StageTiming(Stage(stage), datetime.fromisoformat(started_at), duration_s)
            for stage, started_at, duration_s in _data(row["stages"])
        ),
        failure=_failure(_data(row["failure"])),
    )


def _score_data(score: Score) -> dict[str, Any]:
    return {
        "metric": score.metric,
        "value": score.value,
        "maximise": score.maximise,
        "verdict": score.verdict.value,
        "constraints": [
            {
                "name": limit.name,
                "limit": limit.limit,
                "observed": limit.observed,
                "low": limit.low,
                "high": limit.high,
                "violation": limit.violation,
                "verdict": limit.verdict.value,
                "n": limit.n,
                "n_effective": limit.n_effective,
                "confidence": limit.confidence,
            }
            for limit in score.constraints
        ],
        "low": score.low,
        "high": score.high,
        "confidence": score.confidence,
    }


def _score(data: dict[str, Any]) -> Score:
    limits = (Constraint(**{**limit, "verdict": Verdict(limit["verdict"])}) for limit in data["constraints"])
    return Score(**{**data, "verdict": Verdict(data["verdict"]), "constraints": tuple(limits)})


def _failure_data(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {
        "kind": failure.kind.value,
        "stage": failure.stage.value,
        "blame": failure.blame.value,
        "detail": failure.detail,
        "evidence": failure.evidence,
        "exit_code": failure.exit_code,
        "violation": failure.violation,
        "retryable": failure.retryable,
        "phase": None if failure.phase is None else failure.phase.value,
        "facts": failure.facts,
    }


def _failure(data: dict[str, Any] | None) -> Failure | None:
    if data is None:
        return None
    phase = data.get("phase")  # records of before it was kept lack it
    return Failure(
        **{
            **data,
            "kind": FailureKind(data["kind"]),
            "stage": Stage(data["stage"]),
            "blame": Blame(data["blame"]),
            "evidence": tuple(data["evidence"]),
            "phase": None if phase is None else MemoryPhase(phase),
        }
    )


def recommendation_row(recommendation: Recommendation) -> dict[str, Any]:
    """The columns of `autotune_recommendations` but for the study."""
    return {
        "number": recommendation.number,
        "probability": recommendation.probability,
        "data": to_text(asdict(recommendation)),
    }


def recommendation_record(study: str, row: Row) -> Recommendation:
    """The recommendation of a row.

    Raises:
        HostError: The row was not written by this program.
    """
    return _read(f"what study {study} recommends", lambda found: Recommendation(**_mapping(found["data"])), row)


def _time_text(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise AutotuneError(f"time {moment} has no zone: records hold UTC")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _data(text: str) -> Any:
    return from_text(text)


def _mapping(text: str) -> dict[str, Any]:
    data = from_text(text)
    if not isinstance(data, dict):
        raise ValueError(f"not an object: {text[:60]}")
    return data


def _read(what: str, convert: Callable[[Row], _T], row: Row) -> _T:
    try:
        return convert(row)
    except (ValueError, TypeError, KeyError) as error:
        raise HostError(
            f"the record of {what} cannot be read: {error}",
            hint="it was changed by other means than vllm-autotune; restore the database from a copy",
        ) from error
