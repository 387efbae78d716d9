"""A study's configuration as its record holds it, made whole again: what runs later must launch and send the same."""

from __future__ import annotations

from collections.abc import Mapping

import pydantic
from pydantic import TypeAdapter, ValidationError

from optimizer.config.baseline import ServeCommand
from optimizer.config.evaluator import Evaluator, parse_evaluator
from optimizer.config.models import resolve_model
from optimizer.config.space_file import EngineSection
from optimizer.config.study_config import StudyConfig
from optimizer.config.workload_file import check_requests
from optimizer.core.engine_config import FlagValue, JsonValue
from optimizer.core.errors import InputError
from optimizer.core.record import StudyRecord
from optimizer.core.samplers import DEFAULT_SAMPLER
from optimizer.load import Workload
from optimizer.objectives import OBJECTIVES, VerdictRules, parse_slo
from optimizer.search_spaces import Parameter, Rule, SearchSpace

_PARAMETERS: TypeAdapter[dict[str, Parameter]] = TypeAdapter(dict[str, Parameter])
_NAMES = TypeAdapter(list[str])
_SHARE: TypeAdapter[float | None] = TypeAdapter(float | None)
_RULES = TypeAdapter(dict[str, float])
_FLAGS = TypeAdapter(dict[str, pydantic.JsonValue])


def recorded_config(study: StudyRecord) -> StudyConfig:
    """The configuration that a study was begun with.

    Raises:
        InputError: The record was written by a version that kept less or other things, or a file that it names (the
            model, the requests) is gone or has changed.
    """
    try:
        return _config(study)
    except (ValidationError, KeyError, TypeError) as error:
        what = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(
            f"study {study.name}: its recorded configuration cannot be used again: {what}",
            hint="it was begun with another version of vllm-autotune; run it anew under another name",
        ) from None


def _config(study: StudyRecord) -> StudyConfig:
    data = dict(study.config)
    engine = _object(data["engine"])
    kept = {name: engine[name] for name in ("kind", "device", "memory_gib", "pin_cpus", "warm_start", "env")}
    times = {name: data[name] for name in ("start_timeout_s", "hang_after_s")}
    rules = tuple(Rule.parse(text) for text in _NAMES.validate_python(data["rules"]))
    return StudyConfig(
        study=study.name,
        space_name=str(data["space"]),
        space=SearchSpace(_PARAMETERS.validate_python(data["parameters"]), rules),
        engine=EngineSection.model_validate({**kept, **times}),
        fixed_flags=_flags(engine["flags"]),
        model=resolve_model(str(data["model"]), origin=f"study {study.name}", must_be_here="evaluator" not in data),
        workload=_workload(study.name, _object(data["workload"]), data.get("source_path")),
        objective=OBJECTIVES[str(data["objective"])],
        slos=tuple(parse_slo(text, origin=f"study {study.name}") for text in _NAMES.validate_python(data["slos"])),
        baseline=None if data["baseline"] is None else _command(_object(data["baseline"])),
        trials=int(str(data["trials"])),
        seed=int(str(data["seed"])),
        notes=tuple(_NAMES.validate_python(data["notes"])),
        rules=VerdictRules(**_RULES.validate_python(data["verdict"])),
        sampler=str(data.get("sampler", DEFAULT_SAMPLER)),
        least_gain=_SHARE.validate_python(data.get("least_gain")),
        evaluator=_evaluator(study.name, data),
    )


def _evaluator(study: str, data: Mapping[str, JsonValue]) -> Evaluator | None:
    if "evaluator" not in data:
        return None
    return parse_evaluator(
        str(data["evaluator"]), timeout_s=float(str(data["evaluator_timeout_s"])), origin=f"study {study}: evaluator"
    )


def _command(baseline: Mapping[str, JsonValue]) -> ServeCommand:
    model = baseline["model"]
    return ServeCommand(
        model=None if model is None else str(model),
        flags=_flags(baseline["flags"]),
        env={name: str(value) for name, value in _object(baseline["env"]).items()},
    )


def _flags(data: JsonValue) -> dict[str, FlagValue]:
    return {name: value for name, value in _FLAGS.validate_python(data).items() if value is not None}


def _workload(study: str, data: dict[str, JsonValue], path: JsonValue) -> Workload:
    """The traffic; of a file the record's identity keeps what is in it, and beside it where it lay."""
    source = data.get("source")
    if isinstance(source, dict):
        if not isinstance(path, str):
            raise InputError(
                f"study {study}: its requests come from a file, and its record does not say where that lies",
                hint="it was begun with another version of vllm-autotune; run it anew under another name",
            )
        data = {**data, "source": {**{key: value for key, value in source.items() if key != "sha256"}, "path": path}}
    workload = Workload.model_validate(data)
    check_requests(workload)
    return workload


def _object(value: JsonValue) -> dict[str, JsonValue]:
    if not isinstance(value, dict):
        raise TypeError(f"not an object: {value!r}")
    return value
