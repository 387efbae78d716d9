"""What an external evaluator is asked, and what it may answer; docs/evaluator.md tells users the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.reported import ReportedMetrics
from optimizer.core.trial import Stage
from optimizer.metrics.names import METRICS

EVALUATOR_PROTOCOL = 1
"""Raised whenever the same evaluator would have to answer something else: its studies are never mixed."""
_LARGEST = 1e18
"""No metric comes near it: a petabyte in bytes is 1e15."""
_LONGEST_DETAIL = 500
_SHARES = frozenset({"error_rate", "prefix_cache_hit_rate", "spec_acceptance_rate"})

_WORDS = {
    "json_invalid": "it is no JSON",
    "union_tag_not_found": 'it has no "status"',
    "union_tag_invalid": '"status" is neither "ok" nor "failed"',
}
"""What is wrong with the whole, in short."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class EvaluatorRequest(_Part):
    """The one JSON object on an evaluator's stdin."""

    trial: int = Field(description="Number of the trial: 0 is the baseline, 1 the defaults, then the search.")
    params: Mapping[str, pydantic.JsonValue] = Field(description="The searched parameters that it sets, by name.")
    flags: Mapping[str, pydantic.JsonValue] = Field(
        description="Every engine flag without dashes, the fixed ones included: what `params` come to."
    )
    workload: Mapping[str, pydantic.JsonValue] = Field(description="The study's traffic, as a workload file has it.")
    seed: int = Field(description="Of the traffic: the same in every trial of a study, another one in `confirm`.")
    content_seed: int = Field(description="Of what must differ between attempts, such as the text of prompts.")
    study: str = Field(description="Name of the study.")
    attempt: int = Field(description="1 for the first attempt at this trial.")
    role: str = Field(description="baseline, default, search or confirm.")
    model: str = Field(description="Path or hub id of the model.")
    env: dict[str, str] = Field(description="Variables that the setting wants in the engine's environment.")
    argv: list[str] = Field(description="`flags` as words of a command line, to append to `vllm serve MODEL`.")
    wanted: list[str] = Field(description="Metrics that an `ok` must hold: the objective's, and each limit's.")


_Figure = Annotated[float, Field(ge=0.0, le=_LARGEST, allow_inf_nan=False)]


class OkAnswer(_Part):
    """The setting was measured."""

    status: Literal["ok"] = Field(description="It was measured.")
    metrics: dict[str, _Figure | None] = Field(description="Name as in `status --json` to value; null for unknown.")
    stderr: dict[str, _Figure] = Field(
        default_factory=dict, description="Standard errors of some of these metrics, in the metric's own unit."
    )


class FailedAnswer(_Part):
    """The setting could not be measured."""

    status: Literal["failed"] = Field(description="It was not.")
    kind: FailureKind = Field(description="What went wrong, such as out_of_memory.")
    blame: Blame = Field(description="config: the search learns from it. host: the trial is tried again.")
    detail: str = Field(min_length=1, description="One sentence for a person.")
    violation: float | None = Field(
        default=None,
        gt=0.0,
        le=_LARGEST,
        allow_inf_nan=False,
        description="How far the setting is from working, such as log(needed / available) memory; null if not known.",
    )


_ANSWER: TypeAdapter[OkAnswer | FailedAnswer] = TypeAdapter(
    Annotated[OkAnswer | FailedAnswer, Field(discriminator="status")]
)


class Nonsense(ValueError):
    """An answer that is none; the message says why."""


def read_answer(line: str, wanted: Sequence[str]) -> ReportedMetrics | Failure:
    """Reads the last line that an evaluator printed.

    Args:
        line: The line.
        wanted: Metrics that an `ok` must hold.

    Raises:
        Nonsense: It is not exactly what docs/evaluator.md says.
    """
    try:
        answer = _ANSWER.validate_json(line)
    except ValidationError as error:
        raise Nonsense(_first_problem(error)) from None
    if isinstance(answer, FailedAnswer):
        return _failure(answer)
    return _reported(answer, wanted)


def _reported(answer: OkAnswer, wanted: Sequence[str]) -> ReportedMetrics:
    values = {name: value for name, value in answer.metrics.items() if value is not None}
    # A limit may be on a percentile that is no metric of ours, such as p97.
    _refuse_unknown("metrics", answer.metrics, {*METRICS, *wanted})
    _refuse_unknown("stderr", answer.stderr, values)
    for name in wanted:
        if name not in values:
            raise Nonsense(f"metrics.{name} has no value, and the study needs it")
    for name in _SHARES & values.keys():
        if values[name] > 1.0:
            raise Nonsense(f"metrics.{name} is {values[name]:g}: a share lies between 0 and 1")
    return ReportedMetrics(values, dict(answer.stderr))


def _refuse_unknown(where: str, names: Mapping[str, Any], known: Collection[str]) -> None:
    strangers = [name for name in names if name not in known]
    if strangers:
        what = "no metric of this program" if where == "metrics" else "not among the metrics with a value"
        raise Nonsense(f"{where}.{plain(strangers[0])} is {what}")


def _failure(answer: FailedAnswer) -> Failure:
    by_host = answer.blame is Blame.HOST
    return Failure(
        kind=answer.kind,
        stage=Stage.MEASURING,
        blame=answer.blame,
        detail=plain(answer.detail) or answer.kind.value,
        violation=None if by_host else answer.violation,
        retryable=by_host,
    )


def plain(text: str) -> str:
    """Text for one line of a record: no control characters, nothing that UTF-8 lacks, at most 500 characters."""
    words = "".join(character if character.isprintable() else " " for character in text[: 4 * _LONGEST_DETAIL])
    return " ".join(words.split())[:_LONGEST_DETAIL]


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    if not problem["loc"]:
        return _WORDS.get(problem["type"], "it is no JSON object")
    where = ".".join(str(part) for part in problem["loc"][1:])
    return plain(f"{where}: {problem['msg']}")
