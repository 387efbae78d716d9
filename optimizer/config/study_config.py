"""One study: a space file with the overrides of the command line applied, and what makes two studies the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from optimizer.config.aims import check_aims
from optimizer.config.baseline import ServeCommand, parse_serve_command
from optimizer.config.evaluator import EXTERNAL, Evaluator
from optimizer.config.flag_tables import (
    DEPLOYMENT_VARIABLES,
    SAME_FLAGS,
    STATIC_TABLES,
    FlagTables,
    is_deployment_flag,
)
from optimizer.config.flag_values import typed_value
from optimizer.config.models import ModelSource, resolve_model
from optimizer.config.problems import nearest
from optimizer.config.search_options import known_sampler, parse_gain
from optimizer.config.secret_names import is_secret_setting
from optimizer.config.space_file import MEMORY_FLAG, MINIMUM_TRIALS, EngineSection, SpaceFile
from optimizer.config.workload_file import load_workload
from optimizer.core.engine_config import EngineConfig, FlagValue, JsonValue, canonical_flag
from optimizer.core.errors import InputError
from optimizer.core.record import ParamValue
from optimizer.core.samplers import DEFAULT_SAMPLER
from optimizer.load import Workload
from optimizer.load.tokenizer import load_tokenizer
from optimizer.objectives import OBJECTIVES, USUAL_RULES, Objective, Slo, VerdictRules, check_slos, parse_slo
from optimizer.search_spaces import (
    Rule,
    SearchSpace,
    denied_reason,
    fix_flags,
    gaming_reason,
    leaf_flags,
    memory_fraction,
    set_flag,
)


@dataclass(frozen=True, slots=True)
class StudyConfig:
    """What one study is.

    Attributes:
        study: Its name.
        space_name: Name of the space file it came from.
        space: What is searched.
        engine: How engines are launched; its `flags` are those of the file, `fixed_flags` those that hold.
        fixed_flags: Canonical flags that every engine gets, overrides applied; memory from `engine.memory_gib` comes
            on top, see `launch_flags`.
        model: The model and where it lies.
        workload: The traffic.
        objective: What is driven up or down.
        slos: The limits.
        baseline: The serve command in use today; None stands for the space's fixed flags alone.
        trials: The study's total of trials, baseline and defaults included.
        seed: Of proposals and traffic.
        notes: Remarks for a person about what the overrides changed.
        rules: How sure a verdict must be.
        sampler: Name of the search strategy.
        least_gain: The study ends when the search expects less of a further trial, as a share of the best so far; None:
            it does not end for that.
        evaluator: Measures the trials in place of an engine of our own; None as a rule.
    """

    study: str
    space_name: str
    space: SearchSpace
    engine: EngineSection
    fixed_flags: Mapping[str, FlagValue]
    model: ModelSource
    workload: Workload
    objective: Objective
    slos: tuple[Slo, ...]
    baseline: ServeCommand | None
    trials: int
    seed: int
    notes: tuple[str, ...] = ()
    rules: VerdictRules = USUAL_RULES
    sampler: str = DEFAULT_SAMPLER
    least_gain: float | None = None
    evaluator: Evaluator | None = None

    def launch_flags(self, device_memory_bytes: int | None) -> dict[str, FlagValue]:
        """The fixed flags, with the memory of `engine.memory_gib` as a fraction of the device's.

        Raises:
            InputError: `engine.memory_gib` is given and the device's memory is not known, or smaller.
        """
        flags = dict(self.fixed_flags)
        gib = self.engine.memory_gib
        if gib is None or MEMORY_FLAG in flags:
            return flags
        if device_memory_bytes is None:
            raise InputError(f"engine.memory_gib: {gib:g} GiB: the memory of this device is not known")
        fraction = memory_fraction(gib, device_memory_bytes)
        if fraction > 1:
            raise InputError(
                f"engine.memory_gib: {gib:g} GiB is more than this host has ({device_memory_bytes / 2**30:.1f} GiB)"
            )
        return {**flags, MEMORY_FLAG: fraction}

    def resolve(self, params: Mapping[str, ParamValue], *, device_memory_bytes: int | None) -> EngineConfig:
        """The engine for a proposal; without params it is vLLM's defaults under the fixed flags.

        Raises:
            InputError: The params are not of the space, or the memory is not to be had.
        """
        return self.space.resolve(
            params,
            engine=self.engine.kind,
            model=self.model.target,
            fixed_flags=self.launch_flags(device_memory_bytes),
            env=self.engine.env,
            device_memory_bytes=device_memory_bytes,
        )

    def baseline_config(self, *, device_memory_bytes: int | None) -> EngineConfig:
        """The engine as it is run today: the fixed flags, and every flag of the baseline as it stands on top."""
        config = self.resolve({}, device_memory_bytes=device_memory_bytes)
        if self.baseline is None:
            return config
        return replace(config, flags={**config.flags, **self.baseline.flags}, env={**config.env, **self.baseline.env})

    def baseline_params(self, *, device_memory_bytes: int | None) -> tuple[dict[str, ParamValue], tuple[str, ...]]:
        """What the baseline's engine is as params, and the parameters whose flag it sets outside the space."""
        config = self.baseline_config(device_memory_bytes=device_memory_bytes)
        return self.space.params_from_flags(config.flags, device_memory_bytes=device_memory_bytes)

    def identity(self) -> dict[str, JsonValue]:
        """What all trials of one study share, as plain JSON. How long and by which sampler is no part."""
        return {
            **self.space.as_dict(),
            "model": self.model.name,
            "engine": {
                "kind": self.engine.kind,
                "device": self.engine.device,
                "memory_gib": self.engine.memory_gib,
                "pin_cpus": self.engine.pin_cpus,
                "warm_start": self.engine.warm_start,
                "env": dict(sorted(self.engine.env.items())),
                "flags": dict(sorted(self.fixed_flags.items())),
            },
            "workload": self.workload.identity(),
            "objective": self.objective.name,
            "slos": [str(slo) for slo in self.slos],
            "verdict": asdict(self.rules),
            "baseline": None if self.baseline is None else self.baseline.as_dict(),
            "seed": self.seed,
            **({} if self.evaluator is None else {"evaluator": self.evaluator.command}),
        }

    def as_dict(self) -> dict[str, JsonValue]:
        """The whole configuration as plain JSON, for the record."""
        return {
            **self.identity(),
            "study": self.study,
            "space": self.space_name,
            "trials": self.trials,
            "sampler": self.sampler,
            "least_gain": self.least_gain,
            **({} if self.evaluator is None else {"evaluator_timeout_s": self.evaluator.timeout_s}),
            "start_timeout_s": self.engine.start_timeout_s,
            "hang_after_s": self.engine.hang_after_s,
            "source_path": None if self.workload.source is None else self.workload.source.path,
            "notes": list(self.notes),
        }


def build_study_config(
    space: SpaceFile,
    *,
    study: str | None = None,
    model: str | None = None,
    slos: tuple[str, ...] = (),
    objective: str | None = None,
    baseline: str | None = None,
    set_flags: tuple[str, ...] = (),
    trials: int | None = None,
    seed: int = 0,
    workload: str | None = None,
    sampler: str | None = None,
    least_gain: str | None = None,
    evaluator: Evaluator | None = None,
    tables: FlagTables = STATIC_TABLES,
) -> StudyConfig:
    """Applies the command line's overrides to a space file; None and () leave what the file says.

    Args:
        space: The space file.
        study: Name of the study; that of the space by default.
        model: Bundled name, local path, or hub id.
        slos: Limits that replace all of the file's.
        objective: Key of `OBJECTIVES`.
        baseline: Serve command, as pasted.
        set_flags: `flag=value` each; such a flag is fixed, and no longer searched.
        trials: Total number of trials.
        seed: Of proposals and traffic.
        workload: Name of a built-in workload, or path of a YAML file.
        sampler: Key of `SAMPLERS`.
        least_gain: A percentage such as `1%`.
        evaluator: Measures the trials in place of an engine of our own, which then need not be here, nor its model.
        tables: How many words each flag of a command line takes.

    Raises:
        InputError: An override is wrong, and the option and its value are named; or the workload sends text and the
            model has no tokenizer.
        HostError: The workload sends text, and the library that reads tokenizers is not installed.
    """
    fixed, searched, notes = _fix(space, set_flags, tables)
    source = (
        space.model_source()
        if model is None
        else resolve_model(model, origin="--model", must_be_here=evaluator is None)
    )
    command = (
        space.parsed_baseline(tables)
        if baseline is None
        else parse_serve_command(baseline, origin="--baseline", tables=tables)
    )
    if command is not None:
        notes += _baseline_notes(
            command, source, asked=baseline is not None, model_asked=model is not None, space=space
        )
    traffic = space.workload if workload is None else load_workload(workload)
    sought, limits = _objective(objective or space.objective), _slos(slos) if slos else space.parsed_slos()
    check_aims(sought, limits, traffic, origin=f"{space.origin}: objective" if objective is None else "--objective")
    if traffic.needs_tokenizer and evaluator is None:
        load_tokenizer(source.target)
    return StudyConfig(
        study=_study_name(study, space),
        space_name=space.name,
        space=_holding_requests(searched, traffic),
        engine=space.engine if evaluator is None else _somebody_elses(space.engine),
        fixed_flags=fixed,
        model=source,
        workload=traffic,
        objective=sought,
        slos=limits,
        baseline=command,
        trials=_trials(space.trials if trials is None else trials),
        seed=seed,
        notes=tuple(notes),
        rules=space.verdict.rules,
        sampler=space.sampler if sampler is None else known_sampler(sampler, origin="--sampler"),
        least_gain=space.least_gain if least_gain is None else parse_gain(least_gain, origin="--stop-below-gain"),
        evaluator=evaluator,
    )


def _somebody_elses(engine: EngineSection) -> EngineSection:
    """The section of an engine that is not launched here: nothing is kept warm for it, and no core is its own."""
    return engine.model_copy(update={"kind": EXTERNAL, "warm_start": False, "pin_cpus": False})


def _fix(
    space: SpaceFile, set_flags: tuple[str, ...], tables: FlagTables
) -> tuple[dict[str, FlagValue], SearchSpace, list[str]]:
    given: dict[str, FlagValue] = {}
    for text in set_flags:
        flag, value = parse_setting(text, tables)
        set_flag(given, flag, value)
    narrowed = fix_flags(space.search_space(), given, origin="--set")
    if given and not narrowed.space.parameters:
        raise InputError("--set fixes every parameter: nothing is left to search", hint="leave at least one free")
    fixed = space.fixed_flags()
    for leaf in leaf_flags(given):
        if leaf not in narrowed.pinned_flags:
            set_flag(fixed, leaf, _leaf(given, leaf))
    return fixed, narrowed.space, list(narrowed.notes)


def _holding_requests(space: SearchSpace, workload: Workload) -> SearchSpace:
    """The space with the rule that its context cap holds the longest request of the traffic."""
    rule = Rule.parse(
        f"max-model-len >= {workload.longest_request_tokens}", reason="the workload sends requests of that many tokens"
    )
    return SearchSpace(space.parameters, (*space.rules, rule))


def _leaf(flags: Mapping[str, FlagValue], leaf: str) -> FlagValue:
    node: JsonValue = dict(flags)
    for key in leaf.split("."):
        node = node[key] if isinstance(node, dict) else None
    return {} if node is None else node


def parse_setting(text: str, tables: FlagTables = STATIC_TABLES) -> tuple[str, FlagValue]:
    """Canonical flag and typed value of a `--set FLAG=VALUE`.

    Raises:
        InputError: It is no such text, or the flag may not be set.
    """
    name, equals, value = text.partition("=")
    flag = canonical_flag(name.strip())
    flag = SAME_FLAGS.get(flag, flag)
    if not equals or not flag or not value:
        raise InputError(f"--set {text}: this is not FLAG=VALUE", hint="such as --set max-num-seqs=64")
    reason = denied_reason(flag)
    if reason is not None:
        raise InputError(f"--set {text}: the flag {flag} may not be set: {reason}", hint="leave it out")
    if is_secret_setting(flag):
        raise InputError(f"--set {flag}: this flag holds a secret", hint="set it in the shell; the engine inherits it")
    if flag == "model":
        raise InputError(f"--set {text}: the model is no flag here", hint=f"use --model {value}")
    if value.lower() in ("true", "false"):
        on = value.lower() == "true"
        return (flag.removeprefix("no-"), not on) if flag.startswith("no-") else (flag, on)
    typed = typed_value(flag, value, origin=f"--set {flag}", tables=tables)
    reason = gaming_reason(flag, typed)
    if reason is not None:
        raise InputError(f"--set {text}: {flag} may not be {value}: {reason}", hint="leave it out")
    return flag, typed


def _study_name(study: str | None, space: SpaceFile) -> str:
    name = space.name if study is None else study.strip()
    if not name or len(name) > 100 or not name.isprintable() or "/" in name:
        raise InputError(f"--study {study!r}: a name has 1 to 100 characters and no slash")
    return name


def _trials(trials: int) -> int:
    if trials < MINIMUM_TRIALS:
        raise InputError(
            f"--trials {trials}: a study needs at least {MINIMUM_TRIALS}, for the baseline and the defaults take the "
            "first two",
            hint="--trials 20 is a usual total",
        )
    return trials


def _objective(name: str) -> Objective:
    if name not in OBJECTIVES:
        raise InputError(
            f"--objective {name}: not known{nearest(name, list(OBJECTIVES))}", hint=f"allowed: {', '.join(OBJECTIVES)}"
        )
    return OBJECTIVES[name]


def _slos(texts: tuple[str, ...]) -> tuple[Slo, ...]:
    slos = [parse_slo(text, origin="--slo") for text in texts]
    check_slos(slos, origin="--slo")
    return tuple(slos)


def _baseline_notes(
    command: ServeCommand, source: ModelSource, *, asked: bool, model_asked: bool, space: SpaceFile
) -> list[str]:
    """Remarks about the baseline; a model of its own is an error unless the user chose the study's model as well."""
    notes = [f"the baseline's {name} is left out: {_why_left_out(name)}" for name in command.dropped]
    if command.model is None or command.model in (source.name, source.target, space.model):
        return notes
    if asked and not model_asked:
        raise InputError(
            f"--baseline: it serves {command.model!r}, but the study's model is {source.name!r}",
            hint=f"add --model {command.model} to tune that one",
        )
    if asked:
        notes.append(f"the baseline is measured with {source.name}, not with its own model {command.model}")
    return notes


def _why_left_out(name: str) -> str:
    if is_deployment_flag(name) or name in DEPLOYMENT_VARIABLES:
        return "it belongs to a deployment"
    return denied_reason(name) or "it may hold a secret, or passes something on from outside"
